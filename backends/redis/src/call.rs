//! One script call: what to run, on which keys, with which arguments.

use redis::Cmd;

/// How many keys a lock has.
const KEYS: usize = 5;

/// A script that runs on the server as one step.
pub(crate) struct Script {
    /// For messages.
    pub(crate) name: &'static str,
    /// What the server runs.
    pub(crate) code: String,
    /// How the server calls it once it has seen it.
    sha: String,
    /// With how few of a lock's keys it can do its usual cases, most first.
    fewer: &'static [usize],
}

impl Script {
    /// Takes a script's text.
    pub(crate) fn new(name: &'static str, code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { name, code, sha, fewer: &[] }
    }

    /// Says with how few of a lock's keys it can do some cases; it answers `TRYAGAIN` to others.
    pub(crate) fn fewer(mut self, fewer: &'static [usize]) -> Self {
        self.fewer = fewer;
        self
    }
}

/// One call of a script.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    /// Every key the script touches. All of them share one hash tag, except in a batch, whose keys
    /// the caller has put together by slot.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

impl Call {
    /// The same call with fewer keys, for a lock some of whose keys are elsewhere or nowhere. Calls
    /// about several locks have none.
    pub(crate) fn fewer(&self) -> impl Iterator<Item = Call> {
        let sizes = if self.keys.len() == KEYS { self.script.fewer } else { &[] };
        let less = |n: &usize| self.keys[..*n].to_vec();
        sizes.iter().map(move |n| Call { keys: less(n), args: self.args.clone(), ..*self })
    }

    /// By its hash: what is sent as long as the server knows the script.
    pub(crate) fn by_sha(&self) -> Cmd {
        self.command("EVALSHA", self.script.sha.as_bytes())
    }

    /// With its text: what is sent once the server has said that it does not.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.code.as_bytes())
    }

    fn command(&self, verb: &str, script: &[u8]) -> Cmd {
        let mut cmd = redis::cmd(verb);
        cmd.arg(script).arg(self.keys.len());
        for word in self.keys.iter().chain(&self.args) {
            cmd.arg(word.as_slice());
        }
        cmd
    }
}
