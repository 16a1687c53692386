//! The redis stores of distlock: one node, Sentinel, Cluster, the plain recipe, and Redlock nodes.

#![allow(dead_code)] // while it is being built
mod call;
#[cfg(test)]
mod differential;
mod keys;
mod moves;
mod scripts;
