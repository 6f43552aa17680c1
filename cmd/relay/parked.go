package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
)

// parkedCommand is what people do with what Kafka refused for certain.
type parkedCommand struct {
	List     parkedListCommand     `cmd:"" help:"List parked events, in the order in which they were appended."`
	Keys     parkedKeysCommand     `cmd:"" help:"List the keys that are blocked, the longest blocked first."`
	Show     parkedShowCommand     `cmd:"" help:"Show one parked event."`
	Edit     parkedEditCommand     `cmd:"" help:"Change an event's payload, headers or content type before it is released."`
	Release  parkedReleaseCommand  `cmd:"" help:"Publish a key's events, or one that is parked alone."`
	Discard  parkedDiscardCommand  `cmd:"" help:"Delete a key's parked events, or one, for good."`
	SkipHead parkedSkipHeadCommand `cmd:"" help:"Delete the first event of a key's list, and release the rest."`
}

// looking is a command that reads only.
type looking struct {
	database
	JSON    bool          `name:"json" help:"Print JSON instead of text."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// look opens an Operator that leaves no trace.
func (c looking) look(ctx context.Context, p *program, do func(ctx context.Context, o *operator.Operator) error) error {
	return c.operate(ctx, p, c.Timeout, "nobody", do)
}

// ofKey names a key. A tenant that is not given is the empty one.
type ofKey struct {
	Tenant string `help:"Tenant of the key."`
	Topic  string `help:"Topic of the key."`
	Key    string `help:"The key."`
}

// choice is how a list is cut down. The tenant is a pointer: the empty one is one, too.
type choice struct {
	Tenant    *string       `shown:"(any)" help:"Only of this tenant."`
	Topic     string        `shown:"(any)" help:"Only of this topic."`
	Key       string        `shown:"(any)" help:"Only of this key."`
	Code      string        `shown:"(any)" help:"Only with this code of the reason."`
	OlderThan time.Duration `default:"0s" shown:"(any)" help:"Only what has waited for at least so long."`
	Limit     int           `default:"100" help:"Most that are listed."`
}

func (c choice) check() error {
	if c.Limit <= 0 || c.OlderThan < 0 {
		return service.Usage("--limit wants a number above zero, --older-than a time that is not negative")
	}
	return nil
}

// messageID reads --message-id; the zero id is any.
func messageID(text string) (id uuid.UUID, err error) {
	if text == "" {
		return id, nil
	}
	if id, err = uuid.Parse(text); err != nil {
		err = service.Usage("--message-id: want a UUID")
	}
	return id, err
}

func (c choice) blocked() operator.BlockedFilter {
	return operator.BlockedFilter{Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, OlderThan: c.OlderThan, Limit: c.Limit}
}

type parkedListCommand struct {
	looking
	choice
	MessageID string `name:"message-id" shown:"(any)" help:"Only the event with this id (ce_id)."`
	After     int64  `default:"0" help:"Only ids above this one: the last of the page before."`
}

func (c *parkedListCommand) run(ctx context.Context, p *program) error {
	if err := c.choice.check(); err != nil {
		return err
	}
	id, err := messageID(c.MessageID)
	if err != nil {
		return err
	}
	filter := operator.ParkedFilter{
		MessageID: id, Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, OlderThan: c.OlderThan, After: c.After, Limit: c.Limit,
	}
	return c.look(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.Parked(ctx, filter)
		if err != nil {
			return err
		}
		const head = "ID\tMESSAGE ID\tTENANT\tTOPIC\tKEY\tTYPE\tSTATE\tATTEMPTS\tPARKED\tCODE\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, e operator.ParkedEvent) {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", e.ID, e.MessageID, shown(e.Tenant), e.Topic, shown(e.Key), e.Type,
				stateOf(e), e.Attempts, age(time.Since(e.ParkedAt), true), cmp.Or(e.Code, "-"), reasonOf(e.Reason))
		})
	})
}

func stateOf(e operator.ParkedEvent) string {
	switch {
	case e.Releasing:
		return "releasing"
	case e.Alone:
		return "alone"
	case e.Attempts == 0:
		return "behind"
	}
	return "refused"
}

// shown is a text that people chose: empty, or with what a terminal would act on, it is quoted.
func shown(s string) string {
	if quoted := strconv.QuoteToGraphic(s); s == "" || quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

type parkedKeysCommand struct {
	looking
	choice
}

func (c *parkedKeysCommand) run(ctx context.Context, p *program) error {
	if err := c.choice.check(); err != nil {
		return err
	}
	return c.look(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.BlockedKeys(ctx, c.blocked())
		if err != nil {
			return err
		}
		const head = "TENANT\tTOPIC\tKEY\tSTATE\tSINCE\tWAITING\tOLDEST\tHEAD\tCODE\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, k operator.BlockedKey) {
			state := "parked"
			if k.Releasing {
				state = "releasing"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", shown(k.Tenant), k.Topic, shown(k.Key), state,
				age(time.Since(k.Since), true), k.Waiting, age(time.Since(k.Oldest), true), idOrNone(k.Head), cmp.Or(k.Code, "-"), reasonOf(k.Reason))
		})
	})
}

type parkedShowCommand struct {
	looking
	ID      int64 `name:"id" shown:"(required)" help:"Id of the event, as list shows it."`
	Payload bool  `help:"Show payload and headers, too."`
}

func (c *parkedShowCommand) run(ctx context.Context, p *program) error {
	if c.ID <= 0 {
		return service.Usage("--id is missing: relay parked list shows it")
	}
	return c.look(ctx, p, func(ctx context.Context, o *operator.Operator) error {
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
		return writeParked(p.stdout, e, c.Payload)
	})
}

func writeParked(w io.Writer, e operator.ParkedEvent, payload bool) error {
	lines := [][2]string{
		{"id", fmt.Sprint(e.ID)},
		{"message id", e.MessageID.String()},
		{"lane", fmt.Sprint(e.Lane)},
		{"source", shown(e.Source)},
		{"tenant", shown(e.Tenant)},
		{"topic", e.Topic},
		{"key", shown(e.Key)},
		{"type", shown(e.Type)},
		{"content type", shown(e.ContentType)},
		{"state", stateOf(e)},
		{"attempts", fmt.Sprint(e.Attempts)},
		{"code", cmp.Or(e.Code, "-")},
		{"reason", reasonOf(e.Reason)},
		{"may be in Kafka", yesNo(e.MaybePublished)},
		{"appended", e.CreatedAt.UTC().Format(time.RFC3339)},
		{"parked", e.ParkedAt.UTC().Format(time.RFC3339)},
		{"payload bytes", sizeOf(e.Bytes)},
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		lines = append(lines, [2]string{"header " + shown(name), shown(e.Headers[name])})
	}
	if err := writeLines(w, lines); err != nil || !payload {
		return err
	}
	return writePayload(w, e.Payload)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func sizeOf(n int) string {
	if n < 0 {
		return "none: a tombstone"
	}
	return fmt.Sprint(n)
}

// changing is a command that changes the outbox and leaves an audit.
type changing struct {
	database
	because
	JSON    bool          `name:"json" help:"Print JSON instead of sentences."`
	Timeout time.Duration `default:"5m" help:"How long it may take."`
}

// sayer prints what was done, for machines or for people.
type sayer func(done map[string]any, format string, args ...any) error

func (c changing) say(p *program) sayer {
	return func(done map[string]any, format string, args ...any) error {
		if c.JSON {
			return writeJSON(p.stdout, done)
		}
		_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
		return err
	}
}

// change opens an Operator of the outbox.
func (c changing) change(ctx context.Context, p *program, do func(ctx context.Context, o *operator.Operator) error) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.operate(ctx, p, c.Timeout, c.Operator, do)
}

type parkedEditCommand struct {
	changing
	editFlags
}

// Help is the longer text of --help.
func (*parkedEditCommand) Help() string {
	return `Its id, topic, key and type stay: they decide who has seen it already. What an earlier attempt may have written keeps its old
content ("may be in Kafka" in show). The audit says that it was changed, and not what it was.`
}

func (c *parkedEditCommand) run(ctx context.Context, p *program) error {
	edit, err := c.edit()
	if err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		if err := o.EditParked(ctx, c.ID, edit, c.Reason); err != nil {
			return err
		}
		return c.say(p)(map[string]any{"id": c.ID}, "Event %d is changed. It stays parked until it is released.", c.ID)
	})
}

type parkedReleaseCommand struct {
	changing
	releaseFlags
}

// Help is the longer text of --help.
func (*parkedReleaseCommand) Help() string {
	return `Names a key (--topic, --key, and --tenant if it has one), one event (--id), or --all. The relay that owns the lane publishes a key's list in
its order, under new numbers and the same ids; what was appended meanwhile comes after it. When Kafka refuses one of them again, the
key is parked again. Nothing happens while no relay runs.`
}

func (c *parkedReleaseCommand) run(ctx context.Context, p *program) error {
	if err := c.releaseFlags.check(); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		return c.release(ctx, outboxDesk{o}, c.Reason, c.say(p))
	})
}

type parkedDiscardCommand struct {
	changing
	discardFlags
}

// Help is the longer text of --help.
func (*parkedDiscardCommand) Help() string {
	return `Names a key (--topic, --key, and --tenant if it has one) or one event (--id). It cannot be undone. Of an event that may be in Kafka already
it cannot promise anything: it may still appear once, late.`
}

func (c *parkedDiscardCommand) run(ctx context.Context, p *program) error {
	if err := c.discardFlags.check(); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		return c.discard(ctx, outboxDesk{o}, c.Reason, c.say(p))
	})
}

type parkedSkipHeadCommand struct {
	changing
	skipHeadFlags
}

func (c *parkedSkipHeadCommand) run(ctx context.Context, p *program) error {
	if err := c.skipHeadFlags.check(); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		return c.skip(ctx, outboxDesk{o}, c.Reason, c.say(p))
	})
}
