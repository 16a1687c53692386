//! `cargo xtask bench --peers`: ours beside other libraries' locks, in one run on one server.
//!
//! Every contender is a program that speaks the protocol of `bench/peers/README.md`. In each scene
//! they have their turns one after another, a few times each, so that all meet the same machine.

mod command;
mod contender;
mod driver;
mod member;
mod page;
mod plot;
mod protocol;
mod record;
mod scene;
mod toolchain;
mod usage;

use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use distlock::{Error, Kind};
use distlock_testkit::servers::{self, Postgres, Redis, Server};

use contender::{Contender, Language, RAW, STORES, contenders};
use driver::Turn;
pub(crate) use member::member;
use record::{Absence, Lengths, Machine, Record, Row, Tally};
use scene::Scene;
use toolchain::Program;

/// Where things are.
pub(crate) struct Folders {
    /// The sources of the peers' programs.
    pub(crate) sources: PathBuf,
    /// Where they are built.
    pub(crate) builds: PathBuf,
    /// The command `distlock`.
    pub(crate) command: PathBuf,
    /// The documentation; records, pages and plots in it are written anew.
    pub(crate) docs: PathBuf,
}

/// What the command `distlock` is measured as, beside the stores.
const COMMAND: &str = "command";

fn fail(what: &'static str, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Store, what).because(e)
}

/// Measures a store, or all of them and the command; a quick run prints and records nothing.
pub(crate) async fn run(store: Option<&str>, quick: bool, folders: &Folders) -> Result<(), Error> {
    let all: Vec<&str> = STORES.into_iter().chain([COMMAND]).collect();
    let chosen = match store {
        None => all,
        Some(one) if all.contains(&one) => vec![one],
        Some(other) => {
            return Err(Error::new(Kind::Usage, format!("no store {other:?} has peers"))
                .with_hint(format!("one of: {}", all.join(", "))));
        }
    };
    let mut builds = Builds { folders, built: HashMap::new() };
    // Nothing is built while something else is measured.
    for store in &chosen {
        for contender in contenders(store) {
            let _ = builds.program(contender.language);
        }
    }
    for store in chosen {
        if store == COMMAND {
            let record = command::measure(&folders.command, quick).await?;
            println!("{}", command::table(&record));
            if !quick {
                command::save(&record, &folders.docs)?;
            }
            continue;
        }
        let record = measure(store, quick, &mut builds).await?;
        println!("{}", page::section(&record));
        if !quick {
            save(&record, &folders.docs)?;
        }
    }
    Ok(())
}

/// Programs that were built, or why not.
struct Builds<'a> {
    folders: &'a Folders,
    built: HashMap<Language, Result<Program, String>>,
}

impl Builds<'_> {
    fn program(&mut self, language: Language) -> Result<Program, String> {
        let Folders { sources, builds, .. } = self.folders;
        let build = || {
            eprintln!("building the contenders in {}…", language.title());
            let built = toolchain::build(language, sources, builds);
            if let Err(why) = &built {
                eprintln!("skipped: {why}");
            }
            built
        };
        self.built.entry(language).or_insert_with(build).clone()
    }
}

/// A server that ends with this value, and its version.
async fn server(store: &str) -> Result<(SocketAddr, String, Box<dyn Any>), Error> {
    Ok(match store {
        "redis" => {
            let server = Redis::new().start().await?;
            (server.addr(), version("redis-server", &["--version"]), Box::new(server))
        }
        "postgres" => {
            let server = Postgres::new().durable().start().await?;
            (server.addr(), version("psql", &["--version"]), Box::new(server))
        }
        "etcd" => {
            let server = Server::start(servers::etcd()?).await?;
            (server.addr(), version("etcd", &["--version"]), Box::new(server))
        }
        _ => {
            let server = Server::start(servers::durable_zookeeper()).await?;
            let said = servers::four_letters(server.addr(), "srvr").await?;
            let number = said.split([' ', '-', ',']).find(|word| word.starts_with(numeric));
            let version = format!("ZooKeeper {}", number.unwrap_or_default());
            (server.addr(), version, Box::new(server))
        }
    })
}

fn numeric(c: char) -> bool {
    c.is_ascii_digit()
}

/// The version that a program tells, as `NAME NUMBER`.
fn version(program: &str, args: &[&str]) -> String {
    let said = std::process::Command::new(program).args(args).output();
    let said = said.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let name = match program {
        "redis-server" => "Redis",
        "psql" => "PostgreSQL",
        other => other,
    };
    let words = said.split_ascii_whitespace().map(|word| word.trim_start_matches("v="));
    let number = words.into_iter().find(|word| word.starts_with(numeric) && word.contains('.'));
    format!("{name} {}", number.unwrap_or_default())
}

async fn measure(store: &str, quick: bool, builds: &mut Builds<'_>) -> Result<Record, Error> {
    let lengths = match quick {
        true => Lengths { turns: 1, warm_ms: 300, run_ms: 700 },
        false => Lengths { turns: 2, warm_ms: 500, run_ms: 1000 },
    };
    let dir = tempfile::tempdir().map_err(|e| fail("no place for logs", e))?;
    let mut record = Record {
        store: store.to_owned(),
        server: String::new(),
        machine: Machine::here(),
        lengths,
        versions: Vec::new(),
        absent: Vec::new(),
        rows: Vec::new(),
    };
    let mut programs = Vec::new();
    for contender in contenders(store) {
        match builds.program(contender.language) {
            Ok(program) => programs.push((contender, program)),
            Err(why) => {
                record.absent.push(Absence { peer: contender.peer.to_owned(), scene: None, why });
            }
        }
    }
    let (at, version, _server) = server(store).await?;
    record.server = version;
    for scene in Scene::ALL {
        let taking_part = programs.iter().filter(|(c, _)| c.peer != RAW || !scene.is_contended());
        let mut entries: Vec<Entry<'_>> = taking_part.map(Entry::new).collect();
        for turn in 0..lengths.turns {
            // Each begins as often as the others.
            entries.rotate_left(usize::from(turn > 0));
            for entry in &mut entries {
                entry.turn(store, at, scene, lengths, dir.path(), &mut record).await;
            }
        }
        for contender in contenders(store) {
            let entry = entries.iter().find(|entry| *entry.contender == contender);
            record.rows.extend(entry.and_then(|entry| entry.row(scene)));
        }
    }
    Ok(record)
}

/// One contender in one scene.
struct Entry<'a> {
    contender: &'a Contender,
    program: &'a Program,
    tally: Tally,
    failed: bool,
}

impl<'a> Entry<'a> {
    fn new((contender, program): &'a (Contender, Program)) -> Self {
        Self { contender, program, tally: Tally::default(), failed: false }
    }

    async fn turn(
        &mut self,
        store: &str,
        server: SocketAddr,
        scene: Scene,
        lengths: Lengths,
        dir: &Path,
        record: &mut Record,
    ) {
        if self.failed {
            return;
        }
        let peer = self.contender.peer;
        let role = self.contender.role();
        eprintln!("{store}: {}: {role}…", scene.title());
        let word = role.replace([' ', '.'], "-");
        let (prefix, log) = (format!("{word}-{scene:?}"), dir.join(&word));
        let turn = Turn {
            store,
            server,
            contender: self.contender,
            program: self.program,
            scene,
            lengths,
            prefix: &prefix,
            log: &log,
        };
        match turn.run().await {
            Ok((tally, version)) => {
                self.tally.add(&tally);
                if !record.versions.iter().any(|(known, _)| known == peer) {
                    record.versions.push((peer.to_owned(), version));
                }
            }
            Err(e) => {
                eprintln!("{store}: {}: {peer}: {e}", scene.title());
                self.failed = true;
                let (peer, why) = (peer.to_owned(), e.to_string());
                record.absent.push(Absence { peer, scene: Some(scene), why });
            }
        }
    }

    fn row(&self, scene: Scene) -> Option<Row> {
        (!self.failed).then(|| self.tally.row(scene, self.contender))
    }
}

fn write(file: &Path, text: String) -> Result<(), Error> {
    std::fs::write(file, text).map_err(|e| fail("cannot write the benchmark's page", e))
}

/// The page, and the folder of its records and plots.
const PAGE: &str = "benchmarks.md";
const FOLDER: &str = "bench/peers";

fn save(record: &Record, docs: &Path) -> Result<(), Error> {
    let folder = docs.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|e| fail("cannot make docs/bench/peers", e))?;
    write(&folder.join(format!("{}.json", record.store)), record.text()?)?;
    write(&folder.join(format!("{}.svg", record.store)), plot::svg(record))?;
    splice(docs, &record.store, &page::section(record))
}

/// Puts a generated part in its place on the page.
fn splice(docs: &Path, part: &str, text: &str) -> Result<(), Error> {
    let page = docs.join(PAGE);
    let old = std::fs::read_to_string(&page).map_err(|e| fail("cannot read the page", e))?;
    let missing = || Error::new(Kind::Usage, format!("{PAGE} has no part for {part}"));
    let new = page::replaced(&old, part, text).ok_or_else(missing)?;
    write(&page, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmarks_page_follows_from_its_records() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
        let recorded =
            |store: &str| Record::read(&docs.join(FOLDER).join(format!("{store}.json"))).unwrap();
        // After a change of tables or plots, the same records are written out anew.
        if std::env::var_os("DISTLOCK_BLESS").is_some() {
            STORES.iter().for_each(|store| save(&recorded(store), &docs).unwrap());
            command::save(&command::read(&docs).unwrap(), &docs).unwrap();
        }
        let text = read(PAGE);
        for store in STORES {
            let record = recorded(store);
            assert_eq!(record.store, store);
            assert_eq!(record.text().unwrap(), read(&format!("{FOLDER}/{store}.json")));
            assert_eq!(page::part(&text, store).unwrap(), page::section(&record));
            assert_eq!(read(&format!("{FOLDER}/{store}.svg")), plot::svg(&record));
        }
        let record = command::read(&docs).unwrap();
        assert_eq!(page::part(&text, COMMAND).unwrap(), command::table(&record));
    }

    #[test]
    fn every_program_is_installed_without_an_address_of_a_registry() {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
        let read = |name: &str| std::fs::read_to_string(peers.join(name)).unwrap();
        for manifest in ["go/go.mod", "python/requirements.txt", "node/package.json"] {
            assert!(!read(manifest).contains("://"), "{manifest}");
        }
        assert!(!read("node/package-lock.json").contains("\"resolved\""));
        assert!(!read("java/pom.xml").contains("<repositor"));
        // Every version is one version.
        assert!(read("python/requirements.txt").lines().all(|line| line.contains("==")));
        assert!(!read("node/package.json").contains(['^', '~']));
    }
}
