//! The one definition of the command: parsing, help, man page and completions come from here.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand};
use distlock::backend::duration;
use distlock::fence::advice::{Effect, Resource};
use distlock::{Owner, Token};

const EXIT_CODES: &str = "\
Exit status:
  the command's own with `run` (killed by signal n: 128+n)
  75 busy or timed out (-E)   76 lock lost (--lost-code)   124 held as long as --max-hold allows
  69 store unreachable, or grants nobody yet (quarantine after a restart), whatever -E says
  77 credentials refused      78 the store cannot promise that
  64 usage, name or URL       126/127 command not executable / not found
  1  `break`: the lock has another holder            74 output that could not be written
  70/71 a fault of distlock / of the system, such as no free process

Environment:
  DISTLOCK_URL        the store, when --url is not given
  DISTLOCK_URL_FILE   a file whose first line is the store's URL (keeps passwords out of ps)
  DISTLOCK_NAMESPACE  the namespace, when --namespace is not given
  NO_COLOR            no colour in what -v shows

A duration is a number of seconds, or has units: 500ms, 10s, 5m, 1h30m.
JSON: one document a line; tokens are text, durations are seconds (`age_seconds`).";

/// One lock over the stores people already run.
///
/// Runs a command so that only one copy of it is at work, on one host or on many, and hands it a
/// fencing token that a resource can check.
#[derive(Parser, Debug)]
#[command(name = "distlock", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) everywhere: Everywhere,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What every verb takes, before or after it.
#[derive(ClapArgs, Debug)]
pub(crate) struct Everywhere {
    /// The store: sqlite:PATH, file:DIR, redis://HOST, rediss://HOST, redis+unix:SOCKET,
    /// redis+sentinel://S1,S2,S3/NAME, redis+cluster://HOSTS, redlock://H1,H2,H3, memcached://HOST,
    /// mysql://HOST/DATABASE, postgres://HOST/DATABASE, etcd://H1,H2,H3,
    /// zookeeper://H1,H2,H3/PATH
    /// [default: $DISTLOCK_URL, $DISTLOCK_URL_FILE, or SQLite in the user's state directory]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    pub(crate) url: Option<String>,
    /// Keeps these locks apart from others' on the same store [env: DISTLOCK_NAMESPACE]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    pub(crate) namespace: Option<String>,
    /// Prints JSON, one document a line
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Says nothing but errors
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,
    /// Shows on stderr what happens underneath; twice shows more
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Everywhere")]
    pub(crate) verbose: u8,
}

/// What is to be done.
#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Runs a command under a lock
    Run(Run),
    /// Takes a lock and leaves it held; prints the ticket that renews and releases it
    Acquire(Acquire),
    /// Renews a lock that `acquire` took, and prints its ticket
    Renew(Renew),
    /// Releases a lock that `acquire` took, here or on another machine
    Release(Release),
    /// Lists the locks that are held or waited for
    Ls(Ls),
    /// Shows one lock, with everybody who waits for it
    Show(Show),
    /// Prints a line for every change, until it is ended
    Watch(Watch),
    /// Takes a lock away from whoever holds it
    Break(Break),
    /// Tries the store with a real lock and prints what it promises
    ///
    /// The lock is taken and given back as `run` would, so a store that is not there yet is created:
    /// its file, directory or tables. To look without creating anything use `ls` or `show`.
    Check(Check),
    /// Prints the statements that make a store's tables
    Schema(Schema),
    /// Says whether a lock is needed, and what to do instead
    Advise(Advise),
    /// Prints the completions of a shell
    Completions(Completions),
    /// Prints the manual page
    Man(Man),
}

/// How long to wait.
#[derive(ClapArgs, Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Does not wait: busy is the answer
    #[arg(short = 'n', long)]
    pub(crate) no_wait: bool,
    /// Waits at most this long, also for a store that does not answer; 0 is the same as -n
    /// [default: for ever]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    #[arg(conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
}

/// How to hold.
#[derive(ClapArgs, Debug)]
pub(crate) struct Hold {
    /// A release before this age frees the lock only then
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) min_hold: Option<Duration>,
    /// What others see while they wait [default, also when empty: user, host, command and process]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Who asks: the same owner may enter a lock it holds again [default: a new one each time]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<Owner>,
    /// After an expiry nobody gets the lock for this long
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) lock_delay: Option<Duration>,
}

/// `distlock run`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock run nightly -- ./backup.sh          one at a time, the others wait their turn
  distlock run -n -E 0 nightly -- ./backup.sh  or are skipped quietly, as cron jobs like it
  distlock run -w 30s deploy -- make deploy    or wait for half a minute and exit with 75

The command finds DISTLOCK_NAME and DISTLOCK_TOKEN in its environment. TERM, INT, HUP and QUIT go
to its whole process group. When the lock is lost the group gets TERM, and the command and all that
descends from it KILL before anybody else can have the lock, also when distlock itself was killed
or stopped. Processes that the command leaves behind when it ends by itself run on, without the
lock, and so does a daemon that has left both group and parent.")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) wait: Wait,
    /// How long the lock outlives a silent holder; it is renewed while the command runs
    /// [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) hold: Hold,
    /// Ends the command when it has held the lock this long; exit status 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) max_hold: Option<Duration>,
    /// How long the command has between TERM and KILL when the lock is lost, at most half of the
    /// TTL [default: a tenth of the TTL]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) kill_after: Option<Duration>,
    /// Exit status when somebody else has the lock; 0 skips without a word
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) busy_code: u8,
    /// Exit status when the lock was lost
    #[arg(long, value_name = "CODE", default_value_t = 76, allow_negative_numbers = true)]
    pub(crate) lost_code: u8,
    /// The lock's name
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `distlock acquire`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  ticket=$(distlock acquire deploy --ttl 30m)   in one step of a pipeline
  distlock release \"$ticket\"                    in another, on any machine that sees the store

Nobody renews the lock meanwhile, except `distlock renew`: choose a TTL that covers the work.")]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) wait: Wait,
    /// How long the lock stays held without a renewal [default: 10m, or the store's longest if that
    /// is less]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) hold: Hold,
    /// The lock's name
    pub(crate) name: String,
}

/// `distlock renew`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Example:
  distlock renew \"$ticket\" --ttl 30m    held for half an hour from now on, unless it was lost")]
pub(crate) struct Renew {
    /// Another TTL from now on [default: the ticket's]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    /// What `distlock acquire` printed; - reads it from stdin
    pub(crate) ticket: String,
}

/// `distlock release`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Example:
  distlock release \"$ticket\"    exits with 76 if the lock was lost before")]
pub(crate) struct Release {
    /// What `distlock acquire` printed; - reads it from stdin
    pub(crate) ticket: String,
}

/// `distlock ls`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock ls                                     all that is held or waited for
  distlock ls orders/ --json | jq -r .name        those whose name starts with orders/")]
pub(crate) struct Ls {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// `distlock show`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Example:
  distlock show deploy    who holds it, since when, and who waits in which order")]
pub(crate) struct Show {
    /// The lock's name
    pub(crate) name: String,
}

/// `distlock watch`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Example:
  distlock watch orders/    a line whenever one of them is taken, freed or waited for")]
pub(crate) struct Watch {
    /// How often to look
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// `distlock break`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock break deploy                  its holder is told; free when its lease ends
  distlock break deploy --token 1754...  only if that is still the holder")]
pub(crate) struct Break {
    /// Only the holder with this token; where a process hands a lock on among its tasks, any token of
    /// its range takes the lock from whichever task has it
    #[arg(long, value_name = "T")]
    pub(crate) token: Option<Token>,
    /// Frees the lock at once: two holders are possible until the old lease ends
    #[arg(long)]
    pub(crate) now: bool,
    /// The lock's name
    pub(crate) name: String,
}

/// `distlock check`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock check --url sqlite:/var/lib/app/locks.db    does it work, how fast, what does it promise
  distlock check --url redis://127.0.0.1:6379          it waits while the server is in quarantine")]
pub(crate) struct Check {}

/// `distlock advise`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock advise                                  the whole table
  distlock advise --effect once --resource mysql   one question, with the code
  distlock advise --resource redis --json | jq -r .code")]
pub(crate) struct Advise {
    /// What is to happen
    #[arg(long, value_name = "EFFECT", value_parser = words::<Effect>(Effect::ALL, Effect::word))]
    pub(crate) effect: Option<Effect>,
    /// Where it happens
    #[arg(long, value_name = "RESOURCE", value_parser = words::<Resource>(Resource::ALL, Resource::word))]
    pub(crate) resource: Option<Resource>,
}

/// One of a list of words, so that help and completions know them.
fn words<T>(all: &'static [T], word: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(|&w| word(w))).try_map(|text| text.parse::<T>())
}

/// `distlock schema`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock schema mysql | mysql --user=admin locks     for programs that may not create tables
  distlock schema mysql --prefix app_                  as with ?prefix=app_ in the URL
  distlock schema postgres --schema app | psql locks   as with ?schema=app in the URL")]
pub(crate) struct Schema {
    /// The store: mysql or postgres
    pub(crate) store: String,
    /// What the names of MySQL's tables begin with [default: distlock_]
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// The schema that holds PostgreSQL's tables [default: distlock]
    #[arg(long, conflicts_with = "prefix")]
    pub(crate) schema: Option<String>,
}

/// `distlock completions`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Example:
  distlock completions bash > ~/.local/share/bash-completion/completions/distlock")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// `distlock man`
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  distlock man | man -l -        the page of the command
  distlock man run | man -l -    the page of a verb")]
pub(crate) struct Man {
    /// The page of this verb
    pub(crate) verb: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }
}
