package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgerr"
)

type doctorCommand struct {
	database
	kafkaconn.Config `group:"Kafka:"`
	Topics           []string      `help:"More topics to examine than those that the outbox has published to or has events for, separated by commas."`
	LongTransaction  time.Duration `default:"5m" help:"Age from which an open transaction is a warning."`
	JSON             bool          `name:"json" help:"Print JSON instead of text."`
	Timeout          time.Duration `default:"1m" help:"How long it may take."`
}

// errFindings is the error of an examination whose report shows a failure, or a check that could not look.
var errFindings = errors.New("something fails or could not be looked at, see above")

// Help is the longer text of --help.
func (*doctorCommand) Help() string {
	return `It changes nothing. Connect with the role effectonce_operator of relay migrate --roles; as a relay's or a worker's user it examines
that user's grants, and may see less. Without --kafka-brokers it examines neither Kafka nor the lag of the consumers. A finding is ok, warn (it works, but needs attention), fail (it breaks a guarantee, or does not work) or skip (it was not looked at). The exit code is 6 if anything fails, or a check could not look.
If several outboxes are listed, it examines each of them, or only that of --outbox.`
}

func (c *doctorCommand) run(ctx context.Context, p *program) error {
	subject := doctor.Subject{Schema: c.Schema, Topics: c.Topics, LongTransaction: c.LongTransaction}
	if len(c.Brokers) > 0 {
		conn, err := c.Config.New(kafkaTokens)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		subject.Kafka = conn
	}
	if c.LongTransaction <= 0 {
		return service.Usage("--long-transaction: want a value above zero")
	}
	if c.several {
		return c.examineAll(ctx, p, subject)
	}
	list, err := c.examine(ctx, c.database, subject)
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeJSON(p.stdout, struct {
			Findings []doctor.Finding `json:"findings"`
		}{list})
	} else {
		err = writeFindings(p.stdout, list)
	}
	if err == nil && doctor.Failed(list) {
		return errFindings
	}
	return err
}

// all: a doctor without --outbox examines every outbox that is listed.
func (*doctorCommand) all() {}

func (c *doctorCommand) examine(ctx context.Context, d database, subject doctor.Subject) (list []doctor.Finding,
	err error,
) {
	subject.Schema, subject.Flags = d.Schema, d.where()
	err = d.withReader(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		subject.DB = pool
		list = append(doctor.Examine(ctx, subject), doctor.Restored(ctx, subject)...)
		list = append(list, stuckKeys(ctx, subject)...)
		list = append(list, doctor.Locks(ctx, subject, list)...)
		doctor.Mark(list, doctor.Acknowledged(ctx, subject))
		return nil
	})
	return list, err
}

// stuckKeys looks at idempotency keys, where there are any.
func stuckKeys(ctx context.Context, s doctor.Subject) []doctor.Finding {
	o, err := keysoperator.New(s.DB, s.Schema, "doctor")
	if err != nil {
		return doctor.Keys(s, 0, 0, err)
	}
	here, _, err := o.Access(ctx)
	var counts keysoperator.Counts
	if err == nil && here {
		counts, err = o.Count(ctx)
	}
	if pgerr.Away(err) || wrongSchema(err) || err == nil && !here {
		return nil // the examination has said so
	}
	return doctor.Keys(s, counts.Stuck, counts.Overdue, err)
}

// outboxFindings are the findings of one of several outboxes.
type outboxFindings struct {
	Outbox   string           `json:"outbox"`
	Findings []doctor.Finding `json:"findings"`
}

// examineAll examines one outbox after another. An outbox that cannot be examined is a finding.
func (c *doctorCommand) examineAll(ctx context.Context, p *program, subject doctor.Subject) error {
	outboxes, err := c.someOutboxes(ctx)
	if err != nil {
		return err
	}
	var all []outboxFindings
	failed := false
	for _, o := range outboxes {
		list, err := []doctor.Finding(nil), o.wrong
		if err == nil {
			list, err = c.examine(ctx, c.of(o), subject)
		}
		if err != nil {
			list = []doctor.Finding{{
				Check: "postgres", Severity: doctor.Fail, Found: err.Error(),
				Means: "The outbox cannot be examined.", Next: "Look at its entry in the list.",
			}}
		}
		failed = failed || doctor.Failed(list)
		all = append(all, outboxFindings{o.name, list})
		if c.JSON {
			continue
		}
		if _, err := fmt.Fprintf(p.stdout, "outbox %s\n", shown(o.name)); err != nil {
			return err
		}
		if err := writeFindings(p.stdout, list); err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
	}
	if c.JSON {
		err = writeJSON(p.stdout, orEmpty(all))
	}
	if err == nil && failed {
		return errFindings
	}
	return err
}

func writeFindings(w terminal, list []doctor.Finding) error {
	colours := map[doctor.Severity]string{doctor.Fail: red, doctor.Warn: yellow, doctor.OK: green, doctor.Skip: yellow}
	counts := map[doctor.Severity]int{}
	for _, f := range list {
		counts[f.Severity]++
		if _, err := fmt.Fprintf(w, "%s  %-22s  %s\n", w.paint(colours[f.Severity], fmt.Sprintf("%-4s", f.Severity)),
			f.Check, w.wrap(30, f.Found)); err != nil {
			return err
		}
		if f.Severity != doctor.OK && f.Severity != doctor.Skip {
			lines := [][2]string{{"means", w.wrap(13, f.Means)}, {"next", w.wrap(13, f.Next)}, {"run", f.Command}}
			if a := f.Acknowledged; a != nil {
				lines = [][2]string{{"known", w.wrap(13, fmt.Sprintf("until %s: %s (%s)", a.Until.Format(time.DateOnly),
					shown(a.Reason), shown(a.Operator)))}}
			}
			for _, line := range lines {
				if line[1] == "" {
					continue
				}
				if _, err := fmt.Fprintf(w, "      %-6s %s\n", line[0]+":", line[1]); err != nil {
					return err
				}
			}
		}
	}
	_, err := fmt.Fprintf(w, "\n%d fail, %d warn, %d ok, %d skip\n", counts[doctor.Fail], counts[doctor.Warn],
		counts[doctor.OK], counts[doctor.Skip])
	return err
}
