// Package overview selects from the state of all topics and groups: the overview of the broker,
// pages of lists in any order, and lines of live streams. All of them share one [serving.Survey],
// which is computed on demand and at most once a second. Apart from that, the functions are pure.
package overview
