//! What locks are called.

use std::collections::BTreeSet;

use distlock_core::Locks;

use crate::StoreUnderTest;
use crate::wait::{LONG, busy, give_back, take};

/// `orders` and `orders/42` are two locks.
pub async fn a_name_and_its_prefix_are_two_locks(site: &StoreUnderTest) {
    let (a, b) = (site.client().await, site.client().await);
    for (short, long) in [("orders", "orders/42"), ("orders/", "orders//"), ("x", "x:x")] {
        let one = take(&a, short).await;
        let two = take(&b, long).await;
        busy(&b, short).await;
        busy(&a, long).await;
        give_back(one).await;
        busy(&a, long).await;
        give_back(two).await;
        give_back(take(&a, long).await).await;
    }
}

/// Names that stores like to read as something else.
#[must_use]
pub fn awkward() -> Vec<String> {
    let mut names: Vec<String> = [
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a\\b",
        "/",
        "//",
        ".",
        "..",
        "../x",
        "%",
        "%00",
        "{x}",
        "{x}y",
        "x{}",
        "two words",
        " lead",
        "trail ",
        "line\nbreak",
        "tab\t",
        "\r\n",
        "'",
        "\"",
        "`",
        "''",
        "';--",
        "$1",
        "?",
        "#",
        "*",
        "[a-z]",
        ":",
        "a:b",
        "~",
        "-n",
        "--",
        "замок",
        "锁",
        "🔒",
        "é",
        "e\u{301}",
        "A",
        "a",
        "ß",
        "SS",
        "\u{1}",
        "\u{7f}",
        "nul",
        "con.lock",
        "x.lock",
    ]
    .map(Into::into)
    .into();
    let long = "x".repeat(254);
    names.extend(["x".repeat(255), format!("{long}y"), format!("{long}/"), "锁".repeat(85)]);
    names.extend([format!("{}a", "%".repeat(254)), format!("{}b", "%".repeat(254))]);
    names
}

/// Every awkward name is a lock of its own, and is listed as it was given.
pub async fn awkward_names_are_distinct_locks(site: &StoreUnderTest) {
    let (a, b) = (site.client().await, site.client().await);
    let names = awkward();
    let mut guards = Vec::new();
    for name in &names {
        let got = a.lock(name).ttl(LONG).try_acquire().await;
        let got = got.unwrap_or_else(|e| panic!("{name:?}: {e:?}"));
        guards.push(got.unwrap_or_else(|busy| panic!("{name:?} is another name's lock: {busy}")));
    }
    for name in &names {
        busy(&b, name).await;
        let shown = b.show(name).await.expect("an answer").expect("it is held");
        assert_eq!(shown.lock.name.as_str(), name);
    }
    let listed: BTreeSet<String> =
        b.list("").await.expect("a list").iter().map(|l| l.lock.name.to_string()).collect();
    assert_eq!(listed, names.iter().cloned().collect());
    for guard in guards {
        give_back(guard).await;
    }
    assert!(b.list("").await.expect("a list").is_empty());
}

/// The same name in two namespaces is two locks, and lists do not mix.
pub async fn a_namespace_keeps_clients_apart(site: &StoreUnderTest) {
    let plain = site.client().await;
    let open = async |space: &str| -> Locks {
        let backend = site.client().await.backend().clone();
        Locks::options().namespace(space).open(backend).expect("a namespace")
    };
    let (shop, shop2, depot) = (open("shop").await, open("shop").await, open("depot").await);
    let name = site.name();
    let one = take(&plain, &name).await;
    let two = take(&shop, &name).await;
    let three = take(&depot, &name).await;
    busy(&shop2, &name).await;
    // A namespace is no prefix that a name could fake.
    give_back(take(&plain, &format!("shop:{name}")).await).await;
    give_back(take(&plain, &format!("shop/{name}")).await).await;
    for locks in [&plain, &shop2, &depot] {
        let listed = locks.list("").await.expect("a list");
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].lock.space, *locks.namespace());
    }
    for guard in [one, two, three] {
        give_back(guard).await;
    }
}
