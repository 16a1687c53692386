//! The laws are run as a role that has just the rights its page asks for.

use distlock_core::Error;
use distlock_testkit::servers::{Postgres, Server};

/// Makes the tables as an administrator does, and a role named like the schema that may use them.
pub(crate) async fn prepare(server: &Server, schema: &str, page: &str) -> Result<(), Error> {
    Postgres::sql(server, &distlock_postgres::schema(schema)?).await?;
    let block = page.split("```sql").nth(1).and_then(|rest| rest.split("```").next());
    let grants = block.expect("a page says which rights are needed");
    let grants = grants.replace("distlock", schema).replace("TO app;", &format!("TO {schema};"));
    Postgres::sql(server, &format!("CREATE ROLE {schema} LOGIN; {grants}")).await.map(drop)
}
