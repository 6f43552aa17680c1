package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/event"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

type findCommand struct {
	database
	readFlags
	Text     string `line:"" shown:"(required)" help:"An event's id, message id or key, or an idempotency key."`
	CeSource string `line:"" placeholder:"SOURCE" help:"The ce_source of another producer's event, or else its topic: --text is the id that the record has."`
}

// Help is the longer text of --help.
func (*findCommand) Help() string {
	return `Searches outbox, archive, inbox and idempotency keys of one database, as far as they exist. It reads no table as a whole, and reports
what it did not search for that reason, or because its role may not: then its exit code is 1. An event of another producer has the hash of its source and id in the inbox: --ce-source computes it.`
}

// findings are the results for a text.
type findings struct {
	Outbox *operator.Found      `json:"outbox"` // nil: no outbox here
	Inbox  *inboxoperator.Found `json:"inbox"`
	Keys   *keysoperator.Found  `json:"keys"`
	// NotLooked are the sides that could not be searched, each with the reason.
	NotLooked []string `json:"not_looked_at"`
}

func (c *findCommand) run(ctx context.Context, p *program) error {
	if c.Text = strings.TrimSpace(c.Text); c.Text == "" {
		return service.Usage("--text is missing: an id, a message id or a key")
	}
	if c.CeSource != "" {
		c.Text = event.Decode(&event.Record{Headers: []event.Header{
			{Key: event.HeaderID, Value: []byte(c.Text)}, {Key: event.HeaderSource, Value: []byte(c.CeSource)},
		}}, "").ID.String()
	}
	return c.withReader(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		f, err := c.find(ctx, pool)
		switch {
		case err != nil:
			return withAdvice(err)
		case c.JSON:
			err = writeJSON(p.stdout, struct {
				findings
				Next []string `json:"next"` // the commands that go on with the events
			}{f, f.next(c.database)})
		default:
			err = f.write(p.stdout, c.database)
		}
		if err == nil && len(f.NotLooked) > 0 {
			return errNotLooked
		}
		return err
	})
}

func (c *findCommand) find(ctx context.Context, pool *pgxpool.Pool) (f findings, err error) {
	var none error // the reason why one of them is missing
	out, err := operator.New(pool, c.Schema, nobody)
	if err != nil {
		return f, &service.UsageError{Err: err}
	}
	in, err := inboxoperator.New(pool, c.Schema, "", nobody)
	if err != nil {
		return f, &service.UsageError{Err: err}
	}
	keys, err := keysoperator.New(pool, c.Schema, nobody)
	if err != nil {
		return f, &service.UsageError{Err: err}
	}
	f.NotLooked = []string{}
	// without notes why a side was not searched, and returns an error that ends the search.
	without := func(side migrations.Set, err error) error {
		why, err := c.notLooked(ctx, pool, side, err)
		if why != "" {
			f.NotLooked = append(f.NotLooked, why)
		}
		return err
	}
	if found, err := out.Find(ctx, c.Text); err == nil {
		f.Outbox = &found
	} else if none = outboxError(err); without(migrations.Outbox, err) != nil {
		return f, err
	}
	if found, err := in.Find(ctx, c.Text); err == nil {
		f.Inbox = &found
	} else if without(migrations.Inbox, err) != nil {
		return f, err
	}
	if found, err := keys.Find(ctx, c.Text); err == nil {
		f.Keys = &found
	} else if without(migrations.Idempotency, err) != nil {
		return f, err
	}
	if f.Outbox == nil && f.Inbox == nil && f.Keys == nil && len(f.NotLooked) == 0 {
		return f, none
	}
	return f, nil
}

// errNotLooked is the error of a command whose output says what it could not look at.
var errNotLooked = errors.New("not everything was looked at, see above")

// notLooked says why a side could not be looked at: this role may not, or tables are missing; "" if the database has
// none of its tables. It returns every other error.
func (d database) notLooked(ctx context.Context, pool *pgxpool.Pool, side migrations.Set, err error) (string, error) {
	why := pgerr.Denied(err)
	if why == "" {
		if !wrongSchema(err) {
			return "", err
		}
		list, unread := migrations.Applied(ctx, pool, migrations.Options{
			Schema: d.Schema, Sets: []migrations.Set{side},
		})
		if unread == nil && !slices.ContainsFunc(list, func(m migrations.Status) bool { return m.Applied }) {
			return "", nil
		}
		why = err.Error() + "; `relay migrate` makes the tables"
	}
	return "Not looked at: " + string(side) + ": " + why + ".", nil
}

// goOn returns the command that goes on with an event of the outbox; empty: there is none.
func (d database) goOn(e operator.FoundEvent) string {
	switch e.Where {
	case "parked":
		return doctor.Command(d.where(), d.Schema, "parked", "show", "--id="+fmt.Sprint(e.ID))
	case "held":
		return doctor.Command(d.where(), d.Schema, "topics", "show", "--topic="+e.Topic)
	case "scheduled":
		return doctor.Command(d.where(), d.Schema, "scheduled", "list", "--topic="+e.Topic, "--key="+e.Key)
	}
	return ""
}

// goOnInbox is goOn for an event of the inbox.
func (d database) goOnInbox(e inboxoperator.FoundEvent) string {
	if e.ID == 0 {
		return ""
	}
	return doctor.Command(d.where(), d.Schema, "inbox", "parked", "show", "--id="+fmt.Sprint(e.ID))
}

// next returns the commands that go on with the events.
func (f findings) next(d database) []string {
	commands := []string{}
	add := func(command string) {
		if command != "" && !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	if f.Outbox != nil {
		for _, e := range f.Outbox.Events {
			add(d.goOn(e))
		}
	}
	if f.Inbox != nil {
		for _, e := range f.Inbox.Events {
			add(d.goOnInbox(e))
		}
	}
	return commands
}

func (f findings) write(w io.Writer, d database) error {
	var unsearched []string
	nothing := true
	// heading prints the title of a list that is not empty.
	heading := func(name string, n int, also []string) bool {
		unsearched = append(unsearched, also...)
		if n > 0 {
			nothing = false
			fmt.Fprintln(w, name)
		}
		return n > 0
	}
	var errs []error
	utc := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if f.Outbox != nil && heading("Outbox:", len(f.Outbox.Events), f.Outbox.Unsearched) {
		const head = "WHERE\tSINCE\tID\tLANE/NUMBER\tTOPIC\tTENANT\tKEY\tTYPE\tAPPENDED\tMESSAGE ID\tNEXT"
		line := func(table io.Writer, e operator.FoundEvent) {
			since, number := "-", "-"
			if e.At != nil {
				since = utc(*e.At)
			}
			if e.Seq != 0 {
				number = fmt.Sprintf("%d/%d", e.Lane, e.Seq)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Where, since, e.ID, number, e.Topic,
				cmp.Or(e.Tenant, "-"), shown(e.Key), e.Type, utc(e.CreatedAt), knownID(e.MessageID),
				cmp.Or(d.goOn(e), "-"))
		}
		errs = append(errs, writeList(w, false, f.Outbox.Events, head, line))
	}
	if f.Inbox != nil && heading("Inbox:", len(f.Inbox.Events), f.Inbox.Unsearched) {
		const head = "CONSUMER\tWHERE\tSINCE\tID\tTOPIC\tKEY\tTYPE\tCODE\tMESSAGE ID\tNEXT"
		line := func(table io.Writer, e inboxoperator.FoundEvent) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Consumer, e.Where, utc(e.At), e.ID,
				cmp.Or(e.Topic, "-"), shown(e.Key), cmp.Or(e.Type, "-"), errorText(e.Code), knownID(e.MessageID),
				cmp.Or(d.goOnInbox(e), "-"))
		}
		errs = append(errs, writeList(w, false, f.Inbox.Events, head, line))
	}
	if f.Keys != nil && heading("Idempotency keys:", len(f.Keys.Operations), f.Keys.Unsearched) {
		const head = "OPERATION\tTENANT\tKEY\tSTATE\tCODE\tRESOURCE\tAGE"
		line := func(table io.Writer, k keysoperator.Operation) {
			fmt.Fprintf(table, "%s\t%s\t%q\t%s\t%d\t%s\t%s\n", k.Operation, cmp.Or(k.Tenant, "-"), k.Key, k.State,
				k.Code, cmp.Or(k.Resource, "-"), age(k.Age, true))
		}
		errs = append(errs, writeList(w, false, f.Keys.Operations, head, line))
	}
	if nothing && len(f.NotLooked) > 0 {
		fmt.Fprintln(w, "Nothing was found in what could be looked at.")
	} else if nothing {
		fmt.Fprintln(w, "Nothing was found. Rows that are published are deleted unless they are archived, and "+
			"Kafka is not searched.")
	}
	for _, text := range append(unsearched, f.NotLooked...) {
		fmt.Fprintln(w, text)
	}
	return errors.Join(errs...)
}

func knownID(id uuid.UUID) string {
	if id == uuid.Nil {
		return "-"
	}
	return id.String()
}
