//! `relay console` in a browser, and against requests that no browser sends.

mod attacks;
mod browser;
mod orders;
mod outage;
mod pages;
mod seed;
mod several;
mod stage;
