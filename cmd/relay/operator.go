package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/user"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// readFlags are the flags of a command that only reads.
type readFlags struct {
	JSON    bool          `name:"json" help:"Print JSON instead of text."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// nobody is the operator's name in commands that only read.
const nobody = "nobody"

// auditFlags are the flags of every command that changes something, for the audit.
type auditFlags struct {
	Reason   string `line:"" shown:"(required)" help:"Why, in a few words. It goes into the audit."`
	Operator string `shown:"the user of this process" help:"Who you are, for the audit."`
}

// check refuses a change without a reason before any connection.
func (f auditFlags) check() error {
	switch f.Reason {
	case "":
		return service.Usage("--reason is missing: say why, for the audit")
	case doctor.Placeholder:
		return service.Usage("%s is where a reason goes: say why, for the audit", doctor.Reason)
	}
	if len(f.Reason) > admin.MostReason {
		return service.Usage("--reason has %d bytes, and may have %d", len(f.Reason), admin.MostReason)
	}
	return nil
}

// jsonFlag is the flag of a command that reports what it has done.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON instead of sentences."`
}

// changeFlags are the flags of a command that changes something and reports it.
type changeFlags struct {
	auditFlags
	jsonFlag
	Timeout time.Duration `default:"5m" help:"How long it may take."`
}

// report prints the result, as JSON or as text.
func (f jsonFlag) report(p *program, done any, format string, args ...any) error {
	if f.JSON {
		return writeJSON(p.stdout, done)
	}
	_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
	return err
}

// print prints the result of a command that otherwise only logs it.
func (f jsonFlag) print(p *program, done any) error {
	if !f.JSON {
		return nil
	}
	return writeJSON(p.stdout, done)
}

// operatorName returns the given name, or else the user of the process.
func operatorName(p *program, name string) (string, error) {
	if name == "" {
		if name = p.env("USER"); name == "" {
			if u, err := user.Current(); err == nil {
				name = u.Username
			}
		}
	}
	if name == "" {
		return "", service.Usage("--operator is missing, and this process has no user name: say who you are, for " +
			"the audit")
	}
	return name, nil
}

// operate runs do with an operator of the outbox in the name of a person, for timeout at most.
func (d database) operate(ctx context.Context, p *program, timeout time.Duration, name string,
	do func(ctx context.Context, o *operator.Operator) error,
) error {
	name, err := operatorName(p, name)
	if err != nil {
		return err
	}
	return d.withPool(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		o, err := operator.New(pool, d.Schema, name)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		return outboxError(do(ctx, o))
	})
}

// outboxRead is a command that only reads an outbox.
type outboxRead struct {
	database
	readFlags
}

func (c outboxRead) read(ctx context.Context, p *program,
	do func(ctx context.Context, o *operator.Operator) error,
) error {
	return c.operate(ctx, p, c.Timeout, nobody, do)
}

// inboxRead is a command that only reads an inbox.
type inboxRead struct {
	inboxFlags
	readFlags
}

func (c inboxRead) read(ctx context.Context, p *program,
	do func(ctx context.Context, o *inboxoperator.Operator) error,
) error {
	return c.operate(ctx, p, c.Timeout, nobody, do)
}

// outboxVerb is a command that changes something of an outbox.
type outboxVerb[V verbs.Of[*operator.Operator]] struct {
	database
	Args V `embed:""`
	changeFlags
}

// Help is the longer text of --help.
func (c *outboxVerb[V]) Help() string { return c.Args.Verb().Help }

func (c *outboxVerb[V]) run(ctx context.Context, p *program) error { return c.runAfter(ctx, p, nil) }

// runAfter makes the change unless look fails, which has already passed what the verb and the flags say.
func (c *outboxVerb[V]) runAfter(ctx context.Context, p *program, look func(ctx context.Context) error) error {
	if err := checkVerb(c.Args.Verb().Refusal, c.changeFlags); err != nil {
		return err
	}
	return c.operate(ctx, p, c.Timeout, c.Operator, func(ctx context.Context, o *operator.Operator) error {
		if look != nil {
			if err := look(ctx); err != nil {
				return err
			}
		}
		return perform(ctx, p, o, c.Args, c.changeFlags, "")
	})
}

// inboxVerb is a command that changes something of a consumer.
type inboxVerb[V verbs.Of[*inboxoperator.Operator]] struct {
	inboxFlags
	Args V `embed:""`
	changeFlags
}

// Help is the longer text of --help.
func (c *inboxVerb[V]) Help() string { return c.Args.Verb().Help }

func (c *inboxVerb[V]) run(ctx context.Context, p *program) error { return c.runAfter(ctx, p, nil) }

// runAfter is runAfter of outboxVerb. What look notes follows what the verb says.
func (c *inboxVerb[V]) runAfter(ctx context.Context, p *program,
	look func(ctx context.Context, o *inboxoperator.Operator) (note string, err error),
) error {
	if err := checkVerb(c.Args.Verb().Refusal, c.changeFlags); err != nil {
		return err
	}
	if err := c.checkKeyFlags(); err != nil {
		return err
	}
	return c.operate(ctx, p, c.Timeout, c.Operator, func(ctx context.Context, o *inboxoperator.Operator) error {
		note := ""
		if look != nil {
			var err error
			if note, err = look(ctx, o); err != nil {
				return err
			}
		}
		return perform(ctx, p, o, c.Args, c.changeFlags, note)
	})
}

// checkVerb refuses what is not complete before any connection.
func checkVerb(refusal error, c changeFlags) error {
	if refusal != nil {
		return &service.UsageError{Err: refusal}
	}
	return c.check()
}

// perform makes a change, and says what it has done.
func perform[O any](ctx context.Context, p *program, o O, v verbs.Of[O], c changeFlags, note string) error {
	done, err := v.Verb().Do(ctx, o, c.Reason)
	if err != nil {
		return err
	}
	return c.report(p, done.Values, "%s%s", done.Text, note)
}

// outboxError adds the remedy to an error about a missing outbox.
func outboxError(err error) error {
	if wrongSchema(err) {
		return fmt.Errorf("the outbox's tables are missing or old: run `relay migrate`, or set --schema: %w", err)
	}
	return withAdvice(err)
}

// inboxError adds the remedy to an error about a missing inbox.
func inboxError(err error) error {
	if wrongSchema(err) {
		return fmt.Errorf("the inbox's tables are missing or old: run `relay migrate --sets inbox`, or set "+
			"--schema: %w", err)
	}
	return withAdvice(err)
}

// writeList prints a list as JSON, or as a table with a line for each.
func writeList[T any](w io.Writer, asJSON bool, list []T, head string, line func(table io.Writer, v T)) error {
	if asJSON {
		return writeJSON(w, orEmpty(list))
	}
	table := newTable(w)
	fmt.Fprintln(table, head)
	for _, v := range list {
		line(table, v)
	}
	return table.Flush()
}

// endsAt says that a list has as many entries as it may have.
func (p *program) endsAt(limit, listed int) {
	if listed >= limit {
		p.log.Warn("the list ends at --limit: there may be more", "limit", limit)
	}
}

// orEmpty returns an empty list for nil, which JSON would write as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// shown quotes a text that is empty or has control characters for a terminal.
func shown(s string) string { return verbs.Shown(s) }

// errorText returns an error's text, or its code, on one line.
func errorText(text string) string {
	if text == "" {
		return "-"
	}
	return shown(text)
}

// idOrNone formats an id that may be missing.
func idOrNone(id *uuid.UUID) string {
	if id == nil {
		return "-"
	}
	return id.String()
}

// writeJSON writes for programs: every character as it is.
func writeJSON(w io.Writer, v any) error {
	if t, ok := w.(terminal); ok {
		w = t.Writer
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
