package verbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/doctor"
)

// Acknowledge says that a warning of the doctor is known, and stays for some days.
type Acknowledge struct {
	Check string `line:"" shown:"(required)" help:"Which check, as relay doctor names it."`
	Found string `line:"" shown:"(required)" help:"What it has found, as relay doctor says it; numbers and durations do not count."`
	Days  int    `line:"" default:"7" help:"For how long, at most 365. 0 ends an acknowledgement."`
}

// Verb implements Of.
func (v Acknowledge) Verb() Verb[doctor.Acknowledger] {
	return Verb[doctor.Acknowledger]{
		Command: "acknowledge",
		Title:   "Acknowledge " + Shown(v.Check),
		Help: `For a warning that is to stay, such as a topic with one replica: until then doctor and pages show it with who, why and until when,
and do not count it. Other words, or a failure, of the same check are shown as ever.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o doctor.Acknowledger, reason string) (Done, error) {
			until := time.Now().AddDate(0, 0, v.Days)
			done := fmt.Sprintf("It is acknowledged until %s.", until.UTC().Format("2006-01-02 15:04 UTC"))
			if v.Days == 0 {
				done = "It is acknowledged no longer."
			}
			a := admin.Acknowledgement{Check: v.Check, Found: v.Found, Until: until}
			return Done{done, map[string]any{"check": v.Check, "found": v.Found, "until": until}},
				o.Acknowledge(ctx, a, reason)
		},
	}
}

func (v Acknowledge) check() error {
	switch {
	case v.Check == "" || v.Found == "":
		return errors.New("--check and --found are required: relay doctor shows them")
	case v.Days < 0 || v.Days > 365:
		return errors.New("--days: want 0 to 365")
	}
	return nil
}
