//! What an operator sees and does: the nodes' answers as one.

use std::collections::BTreeMap;

use super::{Fan, Inner, QuorumNode};
use crate::{
    Error, Force, Forced, FullName, HoldInfo, Kind, LockInfo, Name, Query, ReqId, Token, WaiterInfo,
};

impl<N: QuorumNode> Inner<N> {
    /// Lists what a majority has, or could have by nodes that do not answer.
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let Query::Prefix { limit, .. } = query else {
            return Ok(self.page(query).await?.0);
        };
        let (mut all, mut query) = (Vec::new(), query.clone());
        // Some of a page may be shown by a minority only: a short page means the end to callers.
        loop {
            let (page, last, more) = self.page(&query).await?;
            all.extend(page);
            if !more || all.len() >= *limit {
                all.truncate(*limit);
                return Ok(all);
            }
            if let Query::Prefix { after, .. } = &mut query {
                *after = last;
            }
        }
    }

    async fn page(&self, query: &Query) -> Result<(Vec<LockInfo>, Option<Name>, bool), Error> {
        let (answers, silent) = self.all_say(|n| n.inspect(query)).await?;
        let limit = match query {
            Query::Name(_) => 1,
            Query::Prefix { limit, .. } => *limit,
        };
        let more = matches!(query, Query::Prefix { .. })
            && answers.iter().any(|a| limit > 0 && a.len() >= limit);
        let mut seen: BTreeMap<FullName, Vec<LockInfo>> = BTreeMap::new();
        for info in answers.into_iter().flatten() {
            seen.entry(info.lock.clone()).or_default().push(info);
        }
        // Beyond the first so many, a node with a full page has said nothing.
        let names: Vec<_> = seen.into_iter().take(limit).collect();
        let last = names.last().map(|(lock, _)| lock.name.clone());
        let enough = self.majority.saturating_sub(silent).max(1);
        let merged = names.into_iter().filter_map(|(lock, said)| merge(lock, &said, enough));
        Ok((merged.collect(), last, more))
    }

    /// Takes a lock away at every node that has it.
    pub(super) async fn force(
        &self,
        lock: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        let (answers, _) = self.all_say(|n| n.force(lock, token, how)).await?;
        let done = answers.contains(&Forced::Done);
        Ok(if done { Forced::Done } else { Forced::NoMatch })
    }

    /// A question to all nodes; their answers, of a majority at least, and how many gave none.
    async fn all_say<'a, T, F>(&'a self, ask: impl Fn(&'a N) -> F) -> Result<(Vec<T>, usize), Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'a,
    {
        let mut fan = Fan::new(self.clock(), super::CALL, self.nodes.len());
        for (i, n) in self.nodes.iter().enumerate() {
            fan.call(i, ask(&n.node));
        }
        let (mut answers, mut trouble) = (Vec::new(), None);
        while let Some((i, answer)) = fan.next().await {
            self.nodes[i].answered(answer.is_ok());
            match answer {
                Ok(answer) => answers.push(answer),
                Err(e) => trouble = Some(e),
            }
            if answers.len() >= self.majority && fan.open().all(|i| self.nodes[i].ails()) {
                break;
            }
        }
        let silent = self.nodes.len() - answers.len();
        if answers.len() >= self.majority {
            return Ok((answers, silent));
        }
        let said = format!("{} of {} nodes answered", answers.len(), self.nodes.len());
        let e = Error::new(Kind::Unreachable, said)
            .store(&self.site)
            .with_hint("a majority must answer: see whether the others run and can be reached");
        Err(trouble.into_iter().fold(e, Error::because))
    }
}

fn merge(lock: FullName, said: &[LockInfo], enough: usize) -> Option<LockInfo> {
    let mut holds: BTreeMap<ReqId, Vec<&HoldInfo>> = BTreeMap::new();
    let mut line: BTreeMap<ReqId, Vec<&WaiterInfo>> = BTreeMap::new();
    for info in said {
        info.holds.iter().for_each(|h| holds.entry(h.req).or_default().push(h));
        info.waiters.iter().for_each(|w| line.entry(w.req).or_default().push(w));
    }
    let mut held = Vec::new();
    for (_, same) in holds.into_iter().filter(|(_, same)| same.len() >= enough) {
        held.extend(same.iter().max_by_key(|h| h.holder.age).map(|h| (*h).clone()));
    }
    let is_held = |req: &ReqId| held.iter().any(|h: &HoldInfo| h.req == *req);
    let mut waiters: Vec<WaiterInfo> = line
        .into_iter()
        .filter(|(req, same)| same.len() >= enough && !is_held(req))
        .filter_map(|(_, same)| same.iter().max_by_key(|w| w.waited).map(|w| (*w).clone()))
        .collect();
    waiters.sort_by_key(|w| std::cmp::Reverse(w.waited));
    let any = !held.is_empty() || !waiters.is_empty();
    any.then_some(LockInfo { lock, holds: held, waiters })
}
