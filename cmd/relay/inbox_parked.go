package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
)

// inboxParkedCommand is what people do with effects that finally failed.
type inboxParkedCommand struct {
	List     inboxListCommand     `cmd:"" help:"List parked and quarantined events, by the order in which they were parked."`
	Keys     inboxKeysCommand     `cmd:"" help:"List the keys that are blocked, the longest blocked first."`
	Show     inboxShowCommand     `cmd:"" help:"Show one parked event."`
	Edit     inboxEditCommand     `cmd:"" help:"Change an event's payload, headers or content type before it is released."`
	Release  inboxReleaseCommand  `cmd:"" help:"Have a key's events applied, or one that is parked alone or quarantined."`
	Discard  inboxDiscardCommand  `cmd:"" help:"Give a key's parked events up for good, or one."`
	SkipHead inboxSkipHeadCommand `cmd:"" help:"Give up the first event of a key's list, and release the rest."`
}

// ofConsumer is who has what is parked.
type ofConsumer struct {
	Consumer string `shown:"(any)" help:"Consumer name of the inbox. What is done by key or partition needs it."`
}

// inboxOperator opens the inbox of a schema for a person, and gives do so much time with it.
func (d database) inboxOperator(ctx context.Context, p *program, timeout time.Duration, consumer, name string, do func(ctx context.Context, o *inboxoperator.Operator) error) error {
	name, err := operatorName(p, name)
	if err != nil {
		return err
	}
	return d.opened(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		o, err := inboxoperator.New(pool, d.Schema, consumer, name)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		return inboxError(do(ctx, o))
	})
}

// lookingInbox is a command that only reads.
type lookingInbox struct {
	database
	ofConsumer
	JSON    bool          `name:"json" help:"Print JSON instead of text."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

func (c lookingInbox) look(ctx context.Context, p *program, do func(ctx context.Context, o *inboxoperator.Operator) error) error {
	return c.inboxOperator(ctx, p, c.Timeout, c.Consumer, "nobody", do)
}

type inboxListCommand struct {
	lookingInbox
	choice
	Kind      string `shown:"(any)" enum:",failed,behind,quarantined" default:"" help:"failed, behind (waits behind a failed one) or quarantined."`
	MessageID string `name:"message-id" shown:"(any)" help:"Only the event with this id (ce_id)."`
	After     int64  `default:"0" help:"Only ids above this one: the last of the page before."`
}

func (c *inboxListCommand) run(ctx context.Context, p *program) error {
	if err := c.choice.check(); err != nil {
		return err
	}
	id, err := messageID(c.MessageID)
	if err != nil {
		return err
	}
	return c.look(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		list, err := o.Parked(ctx, inboxoperator.ParkedFilter{
			MessageID: id, Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, Kind: c.Kind, OlderThan: c.OlderThan, After: c.After, Limit: c.Limit,
		})
		if err != nil {
			return err
		}
		const head = "ID\tCONSUMER\tMESSAGE ID\tTENANT\tTOPIC\tKEY\tTYPE\tSTATE\tATTEMPTS\tPARKED\tCODE\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, e inboxoperator.ParkedEvent) {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", e.ID, e.Consumer, e.MessageID, shown(e.Tenant), e.Topic, shown(e.Key),
				shown(e.Type), inboxState(e), e.Attempts, age(time.Since(e.ParkedAt), true), cmp.Or(e.Code, "-"), reasonOf(e.Reason))
		})
	})
}

func inboxState(e inboxoperator.ParkedEvent) string {
	switch {
	case e.Releasing:
		return "releasing"
	case e.Alone && e.Kind == "failed":
		return "alone"
	}
	return e.Kind
}

// reasonOf is an error's text on one line.
func reasonOf(text string) string {
	if text == "" {
		return "-"
	}
	return shown(text)
}

type inboxKeysCommand struct {
	lookingInbox
	choice
}

func (c *inboxKeysCommand) run(ctx context.Context, p *program) error {
	if err := c.choice.check(); err != nil {
		return err
	}
	return c.look(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		list, err := o.BlockedKeys(ctx, inboxoperator.BlockedFilter(c.blocked()))
		if err != nil {
			return err
		}
		const head = "CONSUMER\tTENANT\tTOPIC\tKEY\tSTATE\tSINCE\tWAITING\tOLDEST\tHEAD\tCODE\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, k inboxoperator.BlockedKey) {
			state := "parked"
			switch {
			case k.Releasing:
				state = "releasing"
			case k.AtBound:
				state = "full" // its partition halts
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", k.Consumer, shown(k.Tenant), k.Topic, shown(k.Key), state,
				age(time.Since(k.Since), true), k.Waiting, age(time.Since(k.Oldest), true), idOrNone(k.Head), cmp.Or(k.Code, "-"), reasonOf(k.Reason))
		})
	})
}

type inboxShowCommand struct {
	lookingInbox
	ID      int64 `name:"id" shown:"(required)" help:"Id of the event, as list shows it."`
	Payload bool  `help:"Show payload and headers, too."`
}

func (c *inboxShowCommand) run(ctx context.Context, p *program) error {
	if c.ID <= 0 {
		return service.Usage("--id is missing: relay inbox parked list shows it")
	}
	return c.look(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		e, err := o.ParkedEvent(ctx, c.ID)
		if err != nil {
			return err
		}
		if !c.Payload {
			e.Payload, e.Headers = nil, nil
		}
		if c.JSON {
			return writeJSON(p.stdout, e)
		}
		return writeInboxParked(p.stdout, e, c.Payload)
	})
}

func writeInboxParked(w io.Writer, e inboxoperator.ParkedEvent, payload bool) error {
	lines := [][2]string{
		{"id", fmt.Sprint(e.ID)},
		{"consumer", e.Consumer},
		{"message id", e.MessageID.String()},
		{"tenant", shown(e.Tenant)},
		{"topic", e.Topic},
		{"partition", fmt.Sprint(e.Partition)},
		{"offset", fmt.Sprint(e.Offset)},
		{"key", shown(e.Key)},
		{"type", shown(e.Type)},
		{"state", inboxState(e)},
		{"attempts", fmt.Sprint(e.Attempts)},
		{"code", cmp.Or(e.Code, "-")},
		{"reason", reasonOf(e.Reason)},
		{"time", e.Time.UTC().Format(time.RFC3339)},
		{"parked", e.ParkedAt.UTC().Format(time.RFC3339)},
		{"payload bytes", sizeOf(e.Bytes)},
	}
	for _, h := range e.Headers {
		lines = append(lines, [2]string{"header " + shown(h.Key), shown(string(h.Value))})
	}
	if err := writeLines(w, lines); err != nil || !payload {
		return err
	}
	return writePayload(w, e.Payload)
}

// writeLines writes names and values.
func writeLines(w io.Writer, lines [][2]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintf(table, "%s\t%s\n", line[0], line[1])
	}
	return table.Flush()
}

// writePayload writes text as it is, and everything else quoted.
func writePayload(w io.Writer, payload []byte) error {
	format := "\n%s\n"
	if !utf8.Valid(payload) {
		format = "\n%q\n"
	}
	_, err := fmt.Fprintf(w, format, payload)
	return err
}

// changingInbox is a command that changes the inbox and leaves an audit.
type changingInbox struct {
	changing
	ofConsumer
}

func (c changingInbox) change(ctx context.Context, p *program, do func(ctx context.Context, o *inboxoperator.Operator) error) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.inboxOperator(ctx, p, c.Timeout, c.Consumer, c.Operator, do)
}

// needed: a key or partition is one of a consumer.
func (c ofConsumer) needed() error {
	if c.Consumer == "" {
		return service.Usage("--consumer is missing: a key or partition is one of a consumer")
	}
	return nil
}

type inboxEditCommand struct {
	changingInbox
	editFlags
}

// Help is the longer text of --help.
func (*inboxEditCommand) Help() string {
	return `Its id, topic, key and type stay. Headers that effectonce writes (ce_...) stay, too. The audit keeps the record as it was.`
}

func (c *inboxEditCommand) run(ctx context.Context, p *program) error {
	edit, err := c.edit()
	if err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		if err := o.EditParked(ctx, c.ID, inboxoperator.Edit(edit), c.Reason); err != nil {
			return err
		}
		return c.say(p)(map[string]any{"id": c.ID}, "Event %d is changed. It stays parked until it is released.", c.ID)
	})
}

type inboxReleaseCommand struct {
	changingInbox
	releaseFlags
}

// Help is the longer text of --help.
func (*inboxReleaseCommand) Help() string {
	return `Names a key of --consumer (--topic, --key, and --tenant if it has one), one event (--id), or --all of --consumer. A worker runs a key's list in its order, one
transaction each; what comes meanwhile goes behind it. When one fails again, the key is parked again. Nothing happens while no
worker runs. Before you release a quarantined event look at its business row: the inbox cannot tell whether it was applied.`
}

func (c *inboxReleaseCommand) run(ctx context.Context, p *program) error {
	if err := c.releaseFlags.check(); err != nil {
		return err
	}
	if c.ID <= 0 {
		if err := c.needed(); err != nil {
			return err
		}
	}
	return c.change(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		return c.release(ctx, inboxDesk{o}, c.Reason, c.say(p))
	})
}

type inboxDiscardCommand struct {
	changingInbox
	discardFlags
}

// Help is the longer text of --help.
func (*inboxDiscardCommand) Help() string {
	return `Names a key of --consumer (--topic, --key, and --tenant if it has one) or one event (--id). The effect never runs; the audit keeps the
record, and its id stays in the inbox, so that a repeat of it is one.`
}

func (c *inboxDiscardCommand) run(ctx context.Context, p *program) error {
	if err := c.discardFlags.check(); err != nil {
		return err
	}
	if c.ID <= 0 {
		if err := c.needed(); err != nil {
			return err
		}
	}
	return c.change(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		return c.discard(ctx, inboxDesk{o}, c.Reason, c.say(p))
	})
}

type inboxSkipHeadCommand struct {
	changingInbox
	skipHeadFlags
}

func (c *inboxSkipHeadCommand) run(ctx context.Context, p *program) error {
	if err := c.skipHeadFlags.check(); err != nil {
		return err
	}
	if err := c.needed(); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *inboxoperator.Operator) error {
		return c.skip(ctx, inboxDesk{o}, c.Reason, c.say(p))
	})
}

var (
	_ desk = outboxDesk{(*operator.Operator)(nil)}
	_ desk = inboxDesk{(*inboxoperator.Operator)(nil)}
)
