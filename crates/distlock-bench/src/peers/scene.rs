//! The scenes: how many processes, tasks and names.

use serde::{Deserialize, Serialize};

/// What contends with what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scene {
    /// One task on one name.
    Solo,
    /// Sixty-four tasks, each on a name of its own.
    Names,
    /// Sixteen tasks of one process on one name.
    Tasks,
    /// Eight processes of one task each on one name.
    Processes,
    /// Two processes of eight tasks each on one name.
    Two,
}

impl Scene {
    pub(crate) const ALL: [Self; 5] =
        [Self::Solo, Self::Names, Self::Tasks, Self::Processes, Self::Two];

    pub(crate) fn processes(self) -> usize {
        match self {
            Self::Processes => 8,
            Self::Two => 2,
            Self::Solo | Self::Names | Self::Tasks => 1,
        }
    }

    /// Tasks of each process.
    pub(crate) fn tasks(self) -> usize {
        match self {
            Self::Solo | Self::Processes => 1,
            Self::Names => 64,
            Self::Tasks => 16,
            Self::Two => 8,
        }
    }

    pub(crate) fn names(self) -> usize {
        if self == Self::Names { 64 } else { 1 }
    }

    /// Whether tasks wait for each other. Raw calls exclude nobody and have no place in such a scene.
    pub(crate) fn is_contended(self) -> bool {
        !matches!(self, Self::Solo | Self::Names)
    }

    /// As the page calls it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Solo => "solo",
            Self::Names => "64 names",
            Self::Tasks => "16 tasks, one name",
            Self::Processes => "8 processes, one name",
            Self::Two => "2 processes × 8 tasks, one name",
        }
    }
}
