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

/// The table of stores, from their capabilities.
fn table() -> String {
    let mut lines = vec![
        "| store | URL | who excludes whom | fence | a silent holder's lock ends | restart | failover | order | re-entry | modes | detach | break | wake-up |".to_owned(),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    lines.extend(distlock::stores().iter().map(row));
    lines.join("\n")
}

fn row(c: &Capability) -> String {
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
        Order::Fifo => "first come, first served",
        Order::Bounded => "bounded bypass",
        Order::None => "none",
    };
    let reentry = match c.reentry {
        Reentry::Anywhere => "anywhere",
        Reentry::Client => "in one client",
        Reentry::None => "no",
    };
    let modes = match (c.shared, c.permits) {
        (true, true) => "exclusive, shared, permits",
        (true, false) => "exclusive, shared",
        (false, true) => "exclusive, permits",
        (false, false) => "exclusive",
    };
    let wake = match c.wake {
        WakeUp::Push => "push",
        WakeUp::Poll => "poll",
    };
    format!(
        "| {} | `{}` | {} | {} | {ends} | {restart} | {failover} | {order} | {reentry} | {modes} | {} | {} | {wake} |",
        c.store,
        c.url.replace('|', "\\|"),
        c.scope,
        c.fence,
        yes(c.detach),
        yes(c.force),
    )
}

#[test]
fn the_readmes_table_of_stores_is_what_the_code_promises() {
    let path = root().join("README.md");
    let text = read(&path);
    let (before, rest) = text.split_once("<!-- stores:").expect("a marker before the table");
    let (marker, rest) = rest.split_once("-->\n").expect("the marker's end");
    let (inside, after) = rest.split_once("<!-- /stores -->").expect("a marker after the table");
    let table = format!("{}\n", table());
    if std::env::var_os("DISTLOCK_BLESS").is_some() {
        fs::write(
            &path,
            format!("{before}<!-- stores:{marker}-->\n{table}<!-- /stores -->{after}"),
        )
        .unwrap();
    } else {
        assert_eq!(inside, table, "run with DISTLOCK_BLESS=1 to write it anew");
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
