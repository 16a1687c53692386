//! How writes that go together are packed into one transaction.
//!
//! A write that expects to pass is laid open: its comparisons stand beside those of the others, and
//! what it does beside what they do. It all happens if all the comparisons pass, and nothing of it
//! otherwise. That is what costs the server least; but one failed comparison fails the whole batch,
//! and all its writes must be sent again. A write that may well not pass goes as it is, a transaction of its own within
//! the one, with what it does in that case.

use super::proto::{Compare, Do, Done, RequestOp, TxnRequest, TxnResponse};

/// What a write put into the transaction.
enum Part {
    /// Number of comparisons and operations; what it would have done otherwise stayed here.
    Open { compares: usize, ops: usize, otherwise: Vec<RequestOp> },
    /// All of it, as one operation.
    Whole,
}

/// Writes as one transaction.
#[derive(Default)]
pub(crate) struct TxnBatch {
    pub(crate) txn: TxnRequest,
    parts: Vec<Part>,
}

impl TxnBatch {
    /// One more write.
    pub(crate) fn add(&mut self, write: TxnRequest, open: bool) {
        let txn = &mut self.txn;
        self.parts.push(match open {
            true => {
                let (compares, ops) = (write.compare.len(), write.success.len());
                txn.compare.extend(write.compare);
                txn.success.extend(write.success);
                Part::Open { compares, ops, otherwise: write.failure }
            }
            false => {
                txn.success.push(RequestOp { request: Some(Do::Txn(write)) });
                Part::Whole
            }
        });
    }

    /// The writes as they were.
    pub(crate) fn apart(self) -> impl Iterator<Item = TxnRequest> {
        let mut compares = self.txn.compare.into_iter();
        let mut ops = self.txn.success.into_iter();
        self.parts.into_iter().map(move |part| match part {
            Part::Open { compares: c, ops: o, otherwise } => {
                let compare: Vec<Compare> = compares.by_ref().take(c).collect();
                let success = ops.by_ref().take(o).collect();
                TxnRequest { compare, success, failure: otherwise }
            }
            Part::Whole => match ops.next().and_then(|op| op.request) {
                Some(Do::Txn(write)) => write,
                _ => TxnRequest::default(),
            },
        })
    }

    /// What each was told, and whether it went as it was; `None` for one that was told nothing.
    pub(crate) fn told(
        &self,
        said: TxnResponse,
    ) -> impl Iterator<Item = Option<(TxnResponse, bool)>> {
        let (header, mut responses) = (said.header, said.responses.into_iter());
        self.parts.iter().map(move |part| match part {
            Part::Open { ops, .. } => {
                let responses: Vec<_> = responses.by_ref().take(*ops).collect();
                let all = responses.len() == *ops;
                all.then_some((TxnResponse { header, succeeded: true, responses }, false))
            }
            Part::Whole => match responses.next()?.response {
                Some(Done::Txn(said)) => Some((TxnResponse { header, ..said }, true)),
                _ => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Header, ResponseOp};
    use super::*;
    use crate::txn;

    fn three() -> [TxnRequest; 3] {
        let both = TxnRequest {
            failure: vec![RequestOp::default()],
            success: vec![RequestOp::default(), RequestOp::default()],
            ..txn::prove("b", 2)
        };
        [txn::leave_untouched("a", 1), both, txn::layout("1")]
    }

    #[test]
    fn what_was_packed_comes_apart_as_it_was() {
        for open in [[true; 3], [false; 3], [true, false, true], [false, true, false]] {
            let mut batch = TxnBatch::default();
            three().into_iter().zip(open).for_each(|(write, open)| batch.add(write, open));
            assert_eq!(batch.apart().collect::<Vec<_>>(), three(), "{open:?}");
        }
    }

    #[test]
    fn each_is_told_what_is_its_own() {
        let mut batch = TxnBatch::default();
        three().into_iter().zip([true, false, true]).for_each(|(w, open)| batch.add(w, open));
        assert_eq!((batch.txn.compare.len(), batch.txn.success.len()), (2, 3));
        let mut two = TxnBatch::default();
        three().into_iter().take(2).for_each(|w| two.add(w, true));
        let header = Some(Header { revision: 7 });
        let done = |done| ResponseOp { response: Some(done) };
        let put = ResponseOp::default;
        let inner = TxnResponse { responses: vec![put(), put()], ..TxnResponse::default() };
        let responses = vec![put(), done(Done::Txn(inner.clone()))];
        let said = TxnResponse { header, succeeded: true, responses };
        let told: Vec<_> = batch.told(said).collect();
        let open = TxnResponse { header, succeeded: true, responses: vec![put()] };
        let whole = TxnResponse { header, ..inner };
        assert_eq!(told, [Some((open.clone(), false)), Some((whole, true)), None]);
        // Where one has several, each has its own, or nothing if some are missing.
        let said =
            |n| TxnResponse { header, succeeded: true, responses: (0..n).map(|_| put()).collect() };
        let told: Vec<_> = two.told(said(3)).collect();
        assert_eq!(told, [Some((open.clone(), false)), Some((said(2), false))]);
        let told: Vec<_> = two.told(said(2)).collect();
        assert_eq!(told, [Some((open, false)), None]);
    }
}
