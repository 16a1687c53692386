//! What the documents say is what the code says.

use std::fs;
use std::path::{Path, PathBuf};

use distlock::capability::{Capability, Expiry, Order, Reentry, Survives, WakeUp};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The README's table of stores: what one chooses a store by.
fn short_table() -> String {
    let mut lines = vec![
        "| store | URL | who excludes whom | fence | locks after a restart / failover | order, modes |"
            .to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    lines.extend(distlock::stores().iter().map(short_row));
    lines.join("\n")
}

fn short_row(c: &Capability) -> String {
    let after = |event| match event {
        Survives::Yes => "stay",
        Survives::Ends => "end",
        Survives::TwoHolders => "two holders",
        Survives::NotApplicable => "–",
    };
    let order = match c.order {
        Order::Fifo if c.handover => "in order within a process, bounded between",
        Order::Fifo => "in order",
        Order::Bounded => "bounded bypass",
        Order::None => "no order",
    };
    let modes = if c.shared && c.permits { "all modes" } else { modes(c) };
    format!(
        "| [{}](docs/stores/{}.md) | `{}` | {} | {} | {} / {} | {order} · {modes} |",
        c.store,
        page_of(c.store),
        c.url.replace('|', "\\|"),
        c.scope,
        c.fence,
        after(c.restart),
        after(c.failover),
    )
}

/// The table of `docs/stores/`: everything that a capability says in a word.
fn full_table() -> String {
    let mut lines = vec![
        "| store | URL | who excludes whom | fence | a silent holder's lock ends | restart | failover | order | re-entry | modes | detach | break | wake-up |".to_owned(),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    lines.extend(distlock::stores().iter().map(full_row));
    lines.join("\n")
}

fn modes(c: &Capability) -> &'static str {
    match (c.shared, c.permits) {
        (true, true) => "exclusive, shared, permits",
        (true, false) => "exclusive, shared",
        (false, true) => "exclusive, permits",
        (false, false) => "exclusive",
    }
}

fn full_row(c: &Capability) -> String {
    let yes = |b: bool| if b { "yes" } else { "no" };
    let ends = match c.expiry {
        Expiry::Ttl => "after its TTL",
        Expiry::WithProcess => "with its process",
    };
    let after = |event| match event {
        Survives::Yes => "locks stay",
        Survives::Ends => "locks end",
        Survives::TwoHolders => "two holders possible",
        Survives::NotApplicable => "–",
    };
    let (restart, failover) = (after(c.restart), after(c.failover));
    let order = match c.order {
        Order::Fifo if c.handover => {
            "first come, first served within a process, bounded between processes"
        }
        Order::Fifo => "first come, first served",
        Order::Bounded => "bounded bypass",
        Order::None => "none",
    };
    let reentry = match c.reentry {
        Reentry::Anywhere => "anywhere",
        Reentry::Client => "in one client",
        Reentry::None => "no",
    };
    let wake = match c.wake {
        WakeUp::Push => "push",
        WakeUp::Poll => "poll",
    };
    format!(
        "| [{}]({}.md) | `{}` | {} | {} | {ends} | {restart} | {failover} | {order} | {reentry} | {} | {} | {} | {wake} |",
        c.store,
        page_of(c.store),
        c.url.replace('|', "\\|"),
        c.scope,
        c.fence,
        modes(c),
        yes(c.detach),
        yes(c.force),
    )
}

/// Compares a page's part between the markers `stores` with a table, or writes it.
fn holds_table(page: &str, table: &str) {
    let path = root().join(page);
    let text = read(&path);
    let (before, rest) = text.split_once("<!-- stores:").expect("a marker before the table");
    let (marker, rest) = rest.split_once("-->\n").expect("the marker's end");
    let (inside, after) = rest.split_once("<!-- /stores -->").expect("a marker after the table");
    let table = format!("{table}\n");
    if std::env::var_os("DISTLOCK_BLESS").is_some() {
        let text = format!("{before}<!-- stores:{marker}-->\n{table}<!-- /stores -->{after}");
        fs::write(&path, text).expect("the page is written");
    } else {
        assert_eq!(inside, table, "{page}: run with DISTLOCK_BLESS=1 to write it anew");
    }
}

#[test]
fn the_tables_of_stores_are_what_the_code_promises() {
    holds_table("README.md", &short_table());
    holds_table("docs/stores/README.md", &full_table());
}

/// The stores named in a picture are those of the code: by the first word, without algorithms.
#[test]
fn the_readmes_picture_shows_every_store_and_family() {
    let readme = read(&root().join("README.md"));
    let (_, rest) = readme.split_once("## How it is put together").expect("the picture's heading");
    let (_, rest) = rest.split_once("```text").expect("the picture");
    let (picture, _) = rest.split_once("```").expect("the picture's end");
    for store in distlock::stores() {
        let name = store.store.split([' ', '+']).next().unwrap_or_default();
        assert!(picture.contains(name), "{name} is not in the picture");
    }
    for part in ["LeaseDriver", "QueueDriver", "SessionDriver", "QuorumDriver", "dyn Backend"] {
        assert!(picture.contains(part), "{part} is not in the picture");
    }
}

/// `redis+sentinel` is on `redis-sentinel.md`, `redis (plain)` on `redis-plain.md`; the same recipe
/// at other servers shares its page.
fn page_of(store: &str) -> String {
    let words = store.replace(['(', ')'], "").replace(['+', ' '], "-");
    words.replace("redis-sentinel-plain", "redis-plain").replace("redlock-plain", "redlock")
}

#[test]
fn every_store_has_a_page_that_the_readme_links() {
    let readme = read(&root().join("README.md"));
    for store in distlock::stores() {
        let page = format!("docs/stores/{}.md", page_of(store.store));
        assert!(root().join(&page).exists(), "no {page}");
        assert!(readme.contains(&page), "the README does not link {page}");
    }
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).expect("a readable folder");
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut all = Vec::new();
    pages(&root(), &mut all);
    assert!(all.len() > 10, "{all:?}");
    let mut broken = Vec::new();
    for page in all {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let outside = link.contains("://") || target.is_empty();
            if !outside && !page.parent().unwrap().join(target).exists() {
                broken.push(format!("{} → {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
