package soak

import "github.com/effectonce/effectonce/verify/history"

// Report is the result of a run, a line of JSON in the file that EFFECTONCE_SOAK_REPORT names.
type Report struct {
	Seed            uint64         `json:"seed"`
	Duration        string         `json:"duration"` // of the faults
	Brokers         int            `json:"brokers"`
	Faults          map[string]int `json:"faults"`      // made, by kind
	TookEffect      map[string]int `json:"took_effect"` // of the kinds that check their effect
	OthersContinued map[string]int `json:"went_on"`     // of TookEffect: other processes continued
	NotMade         []string       `json:"not_made"`    // with the reason
	Failures        []string       `json:"unwell"`      // what was not in order at the end (I8)
	Starts          int            `json:"lives"`       // starts of processes
	Crashes         []string       `json:"ended_by_themselves"`
	Kills           map[string]int `json:"kills_at_statements"`

	Verdict history.Verdict `json:"verdict"`
}
