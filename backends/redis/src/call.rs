//! One script call: what to run, on which keys, with which arguments.

use redis::Cmd;

/// A script that runs on the server as one step.
pub(crate) struct Script {
    /// For messages.
    pub(crate) name: &'static str,
    /// What the server runs.
    pub(crate) code: String,
    /// How the server calls it once it has seen it.
    sha: String,
}

impl Script {
    /// Takes a script's text.
    pub(crate) fn new(name: &'static str, code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { name, code, sha }
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
