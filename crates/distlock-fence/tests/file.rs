//! A fenced file on a real file system.
#![allow(clippy::unwrap_used)] // tests

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use distlock_fence::file::{FencedFile, Generations};
use distlock_fence::{Error, Token};

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn an_older_holder_does_not_replace_what_a_newer_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let file = FencedFile::new(&path).unwrap();
    assert_eq!(file.highest().unwrap(), None);
    file.replace(token(5), b"five").unwrap();
    file.replace(token(5), b"five again").unwrap();
    file.replace_async(token(7), b"seven".to_vec()).await.unwrap();
    for late in [file.replace(token(6), b"six"), file.replace_async(token(6), vec![6]).await] {
        assert_eq!(late.unwrap_err().stale().unwrap().highest, token(7));
    }
    assert_eq!((read(&path).as_str(), file.highest().unwrap()), ("seven", Some(token(7))));
    file.replace(Token::MAX, b"last").unwrap();
    assert_eq!(file.highest().unwrap(), Some(Token::MAX));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "only the file and its fence: {names:?}");
}

#[test]
fn the_fence_is_there_before_the_data() {
    let dir = tempfile::tempdir().unwrap();
    // A rename over a folder that is not empty fails: the moment between fence and data.
    let path = dir.path().join("config");
    fs::create_dir_all(path.join("in the way")).unwrap();
    let file = FencedFile::new(&path).unwrap();
    assert!(matches!(file.replace(token(9), b"nine"), Err(Error::Store(_))));
    assert_eq!(file.highest().unwrap(), Some(token(9)));
    fs::remove_dir_all(&path).unwrap();
    assert!(file.replace(token(8), b"eight").unwrap_err().stale().is_some());
    assert!(!path.exists());
    file.replace(token(9), b"nine").unwrap();
    assert_eq!(read(&path), "nine");
}

#[test]
fn others_are_kept_out_for_as_long_as_one_is_inside() {
    use rustix::fs::{FlockOperation::NonBlockingLockShared, flock};
    let dir = tempfile::tempdir().unwrap();
    let file = FencedFile::new(dir.path().join("config")).unwrap();
    let inside = file.enter(token(3)).unwrap();
    let fence = fs::File::open(dir.path().join("config.fence")).unwrap();
    assert!(flock(&fence, NonBlockingLockShared).is_err(), "nobody else is inside");
    drop(inside);
    flock(&fence, NonBlockingLockShared).unwrap();
}

#[test]
fn a_torn_fence_falls_back_to_the_last_that_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (path, fence) = (dir.path().join("config"), dir.path().join("config.fence"));
    let file = FencedFile::new(&path).unwrap();
    // The very first write was torn: nothing counted yet.
    fs::write(&fence, "1 00000000000000").unwrap();
    assert_eq!(file.highest().unwrap(), None);
    for n in [5, 6, 7] {
        file.replace(token(n), b"x").unwrap();
    }
    // 8 was torn by a crash: of the bytes it changes only the first got to the disk.
    let before = fs::read(&fence).unwrap();
    drop(file.enter(token(8)).unwrap());
    let after = fs::read(&fence).unwrap();
    let first = before.iter().zip(&after).position(|(b, a)| b != a).unwrap();
    let torn: Vec<u8> = after[..=first].iter().chain(&before[first + 1..]).copied().collect();
    assert_ne!(torn, after);
    fs::write(&fence, torn).unwrap();
    assert_eq!(file.highest().unwrap(), Some(token(7)));
    assert!(file.replace(token(6), b"x").unwrap_err().stale().is_some());
    file.replace(token(9), b"x").unwrap();
    assert_eq!(file.highest().unwrap(), Some(token(9)));
    for bad in ["2 0000000000000000009 0000000000000000009\n".to_owned(), "x".repeat(84)] {
        fs::write(&fence, bad).unwrap();
        assert!(matches!(file.replace(token(99), b"x"), Err(Error::Layout(_))));
    }
}

#[test]
fn the_rights_of_the_file_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    FencedFile::new(&path).unwrap().replace(token(1), b"new").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(FencedFile::new("/").is_err() && FencedFile::new("..").is_err());
}

#[test]
fn many_writers_end_with_the_newest_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    std::thread::scope(|s| {
        for start in 1..=4 {
            let file = FencedFile::new(&path).unwrap();
            s.spawn(move || {
                for n in (start..=40).step_by(4) {
                    match file.replace(token(n), n.to_string().as_bytes()) {
                        Ok(()) | Err(Error::Stale(_)) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    assert_eq!(read(&path), "40");
}

#[test]
fn of_generations_the_highest_counts() {
    let dir = tempfile::tempdir().unwrap();
    let all = Generations::new(dir.path().join("model")).unwrap();
    assert_eq!(all.latest().unwrap(), None);
    fs::write(dir.path().join("model.tmp"), "not one").unwrap();
    all.write(token(9), b"nine").unwrap();
    all.write(token(10), b"ten").unwrap();
    assert!(matches!(all.write(token(10), b"again"), Err(Error::Store(_))), "never replaced");
    assert_eq!(all.write(token(8), b"eight").unwrap_err().stale().unwrap().highest, token(10));
    let (highest, path) = all.latest().unwrap().unwrap();
    assert_eq!((highest, read(&path).as_str()), (token(10), "ten"));
    assert_eq!((all.prune(2).unwrap(), all.prune(0).unwrap(), all.prune(0).unwrap()), (1, 1, 0));
    assert_eq!(read(&all.latest().unwrap().unwrap().1), "ten");
}
