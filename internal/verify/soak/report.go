package soak

import "github.com/effectonce/effectonce/internal/verify/history"

// Report is what a run says of itself, a line of JSON in the file that EFFECTONCE_SOAK_REPORT names.
type Report struct {
	Seed     uint64         `json:"seed"`
	Duration string         `json:"duration"` // of the faults
	Brokers  int            `json:"brokers"`
	Faults   map[string]int `json:"faults"`      // made, by kind
	Took     map[string]int `json:"took_effect"` // of those kinds that look
	// of those that took effect: what they must not touch went on meanwhile
	WentOn  map[string]int `json:"went_on"`
	NotMade []string       `json:"not_made"` // drawn, and why they could not be made
	Unwell  []string       `json:"unwell"`   // what was not well again in time (I8)
	Lives   int            `json:"lives"`    // starts of processes
	Crashes []string       `json:"ended_by_themselves"`
	Kills   map[string]int `json:"kills_at_statements"`

	Verdict history.Verdict `json:"verdict"`
}
