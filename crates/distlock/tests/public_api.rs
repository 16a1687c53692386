//! Nothing becomes public unnoticed: `public-api.txt` lists every name that the facade exports.
//!
//! The list is read from the sources of the facade, the core and the fences, so it is the same with
//! every set of features. Trait impls and signatures are not in it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Fields, ImplItem, Item, TraitItem, UseTree, Visibility};

#[test]
fn every_public_name_is_on_the_list() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = here.join("public-api.txt");
    let names: Vec<String> = Sources::read(here).names().into_iter().collect();
    let now = format!("{}\n", names.join("\n"));
    if std::env::var_os("DISTLOCK_BLESS").is_some() {
        fs::write(&listed, now).expect("the list is written");
        return;
    }
    let before = fs::read_to_string(&listed).unwrap_or_default();
    let (was, is): (BTreeSet<&str>, BTreeSet<&str>) =
        (before.lines().collect(), now.lines().collect());
    let new: Vec<_> = is.difference(&was).collect();
    let gone: Vec<_> = was.difference(&is).collect();
    assert!(
        before == now,
        "the public names are not those of public-api.txt\nnew: {new:#?}\ngone: {gone:#?}\n\
         run with DISTLOCK_BLESS=1 to write it anew, if that is meant"
    );
}

/// A module: the crate and the path below its root.
type Module = Vec<String>;

/// The modules of the facade and of the crates that it re-exports.
struct Sources {
    modules: HashMap<Module, Vec<Item>>,
}

/// What a path leads to.
enum Target<'a> {
    Module(Module),
    Item(Module, &'a Item),
}

impl Sources {
    fn read(facade: &Path) -> Self {
        let mut this = Self { modules: HashMap::new() };
        for name in ["distlock", "distlock-core", "distlock-fence"] {
            let src = facade.join("..").join(name).join("src");
            this.add(vec![name.replace('-', "_")], &src.join("lib.rs"), &src);
        }
        this
    }

    /// Reads a file as a module; the files of its modules are in `dir`.
    fn add(&mut self, module: Module, file: &Path, dir: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.insert(module, parsed.items, dir);
    }

    fn insert(&mut self, module: Module, items: Vec<Item>, dir: &Path) {
        let mut items: Vec<Item> =
            items.into_iter().filter(|i| !is_for_tests(attributes(i))).collect();
        for item in &mut items {
            let Item::Mod(inner) = item else { continue };
            let name = inner.ident.to_string();
            let path: Module = module.iter().cloned().chain([name.clone()]).collect();
            let below = dir.join(&name);
            match inner.content.take() {
                Some((_, items)) => self.insert(path, items, &below),
                None => {
                    let flat: PathBuf = dir.join(format!("{name}.rs"));
                    let file = if flat.exists() { flat } else { below.join("mod.rs") };
                    self.add(path, &file, &below);
                }
            }
        }
        self.modules.insert(module, items);
    }

    /// Every public name of the facade.
    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.list(&["distlock".to_owned()].to_vec(), "distlock", &mut names);
        names
    }

    fn list(&self, module: &Module, prefix: &str, names: &mut BTreeSet<String>) {
        for item in &self.modules[module] {
            match item {
                Item::Use(item) if is_public(&item.vis) => {
                    for (path, name) in leaves(&item.tree) {
                        let found = self.find(module, &path);
                        self.show(found, &format!("{prefix}::{name}"), names);
                    }
                }
                Item::Mod(inner) if is_public(&inner.vis) => {
                    let path = module.iter().cloned().chain([inner.ident.to_string()]).collect();
                    let shown = format!("{prefix}::{}", inner.ident);
                    self.show(Target::Module(path), &shown, names);
                }
                item => {
                    if let Some((name, vis)) = named(item)
                        && is_public(vis)
                    {
                        let found = Target::Item(module.clone(), item);
                        self.show(found, &format!("{prefix}::{name}"), names);
                    }
                }
            }
        }
    }

    /// One exported module or item, with what is public in it.
    fn show(&self, target: Target<'_>, shown: &str, names: &mut BTreeSet<String>) {
        let (module, item) = match target {
            Target::Module(module) => {
                names.insert(format!("{shown} (mod)"));
                return self.list(&module, shown, names);
            }
            Target::Item(module, item) => (module, item),
        };
        let grows = attributes(item).iter().any(|a| a.path().is_ident("non_exhaustive"));
        let grows = if grows { ", non_exhaustive" } else { "" };
        let mut member = |name: String| {
            names.insert(format!("{shown}::{name}"));
        };
        let kind = match item {
            Item::Struct(item) => {
                fields(&item.fields).into_iter().for_each(&mut member);
                "struct"
            }
            Item::Enum(item) => {
                item.variants.iter().map(|v| v.ident.to_string()).for_each(&mut member);
                "enum"
            }
            Item::Trait(item) => {
                for item in &item.items {
                    match item {
                        TraitItem::Fn(f) => member(f.sig.ident.to_string()),
                        TraitItem::Type(t) => member(t.ident.to_string()),
                        TraitItem::Const(c) => member(c.ident.to_string()),
                        _ => {}
                    }
                }
                "trait"
            }
            Item::Fn(_) => "fn",
            Item::Const(_) => "const",
            Item::Static(_) => "static",
            Item::Type(_) => "type",
            _ => "item",
        };
        if let (Some((name, _)), "struct" | "enum") = (named(item), kind) {
            self.methods(&module, &name).into_iter().for_each(&mut member);
        }
        names.insert(format!("{shown} ({kind}{grows})"));
    }

    /// The public functions and constants of a type, wherever in its crate its `impl`s are.
    fn methods(&self, home: &Module, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (module, items) in self.modules.iter().filter(|(m, _)| m[0] == home[0]) {
            for item in items {
                let Item::Impl(item) = item else { continue };
                let syn::Type::Path(of) = &*item.self_ty else { continue };
                let path: Module = of.path.segments.iter().map(|s| s.ident.to_string()).collect();
                if item.trait_.is_some() || path.last().is_none_or(|last| last != name) {
                    continue;
                }
                if !matches!(self.find(module, &path), Target::Item(m, _) if m == *home) {
                    continue;
                }
                found.extend(item.items.iter().filter_map(|inner| match inner {
                    ImplItem::Fn(f) if is_public(&f.vis) && !is_for_tests(&f.attrs) => {
                        Some(f.sig.ident.to_string())
                    }
                    ImplItem::Const(c) if is_public(&c.vis) => Some(c.ident.to_string()),
                    _ => None,
                }));
            }
        }
        found
    }

    /// Follows a path from a module, through `use`, to what it means.
    fn find(&self, module: &Module, path: &[String]) -> Target<'_> {
        self.try_find(module, path)
            .unwrap_or_else(|| panic!("{}: cannot follow {}", module.join("::"), path.join("::")))
    }

    fn try_find(&self, module: &Module, path: &[String]) -> Option<Target<'_>> {
        let (first, rest) = path.split_first()?;
        let parent = &module[..module.len() - 1];
        match first.as_str() {
            "crate" => return self.inside(&module[..1].to_vec(), rest),
            "self" => return self.inside(module, rest),
            "super" => return self.inside(&parent.to_vec(), rest),
            _ => {}
        }
        let root = vec![first.clone()];
        self.inside(module, path).or_else(|| {
            self.modules.contains_key(&root).then(|| self.inside(&root, rest)).flatten()
        })
    }

    fn inside(&self, module: &Module, path: &[String]) -> Option<Target<'_>> {
        let Some((first, rest)) = path.split_first() else {
            return Some(Target::Module(module.clone()));
        };
        let child: Module = module.iter().cloned().chain([first.clone()]).collect();
        if self.modules.contains_key(&child) {
            return self.inside(&child, rest);
        }
        let items = self.modules.get(module)?;
        // Defined here first: a function may have the name of a module that is imported.
        if let Some(item) = items.iter().find(|i| named(i).is_some_and(|(name, _)| name == *first))
        {
            return Some(Target::Item(module.clone(), item));
        }
        let uses = items.iter().filter_map(|i| if let Item::Use(i) = i { Some(i) } else { None });
        let leaf = uses.flat_map(|i| leaves(&i.tree)).find(|(_, name)| name == first);
        let (path, _) = leaf.filter(|(p, _)| p.first() != Some(first))?;
        let path: Vec<String> = path.into_iter().chain(rest.iter().cloned()).collect();
        self.try_find(module, &path)
    }
}

/// The paths of a `use`, each with the name that it gives.
fn leaves(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        UseTree::Path(path) => {
            let first = path.ident.to_string();
            let below = leaves(&path.tree).into_iter();
            below
                .map(|(rest, name)| {
                    let name = if name == "self" { first.clone() } else { name };
                    let rest = rest.into_iter().filter(|s| s != "self");
                    ([first.clone()].into_iter().chain(rest).collect(), name)
                })
                .collect()
        }
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(name) => vec![(vec![name.ident.to_string()], name.rename.to_string())],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        UseTree::Glob(_) => vec![(vec!["*".to_owned()], "*".to_owned())],
    }
}

fn named(item: &Item) -> Option<(String, &Visibility)> {
    let (name, vis) = match item {
        Item::Const(i) => (&i.ident, &i.vis),
        Item::Enum(i) => (&i.ident, &i.vis),
        Item::Fn(i) => (&i.sig.ident, &i.vis),
        Item::Static(i) => (&i.ident, &i.vis),
        Item::Struct(i) => (&i.ident, &i.vis),
        Item::Trait(i) => (&i.ident, &i.vis),
        Item::Type(i) => (&i.ident, &i.vis),
        Item::Union(i) => (&i.ident, &i.vis),
        _ => return None,
    };
    Some((name.to_string(), vis))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Behind `#[cfg(test)]` or `#[cfg(doctest)]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        let word = a.path().is_ident("cfg").then(|| a.parse_args::<syn::Ident>().ok()).flatten();
        word.is_some_and(|word| word == "test" || word == "doctest")
    })
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

/// The public fields by name, or by number.
fn fields(fields: &Fields) -> Vec<String> {
    let public = fields.iter().enumerate().filter(|(_, f)| is_public(&f.vis));
    public
        .map(|(n, f)| f.ident.as_ref().map_or_else(|| n.to_string(), ToString::to_string))
        .collect()
}
