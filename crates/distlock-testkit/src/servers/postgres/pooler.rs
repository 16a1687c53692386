//! A pooler in front of a PostgreSQL.

use std::fs;
use std::path::Path;

use super::{Account, HELLO, Postgres, Program, Server, UP};

const CONFIG: &str = "pgbouncer.ini";

impl Postgres {
    /// A PgBouncer in front of this server, which must run and ask for no password. `mode` is for
    /// how long a client keeps its connection: `session` or `transaction`.
    #[must_use]
    pub fn pooler(server: &Server, mode: &'static str) -> Program {
        let behind = server.addr();
        let args = move |port: u16, dir: &Path| {
            let config = format!(
                "[databases]\npostgres = host={} port={} dbname=postgres user=postgres\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = {mode}\n",
                behind.ip(),
                behind.port()
            );
            let file = dir.join(CONFIG);
            // Without it the program says so itself.
            let _ = fs::write(&file, config);
            vec![file.display().to_string()]
        };
        Program::new("pgbouncer", "pgbouncer", args)
            .probe(HELLO, UP)
            .account(Account::unless_root_is_fine("postgres"))
    }
}
