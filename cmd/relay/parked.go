package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay"
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
func (c looking) look(ctx context.Context, p *program, do func(ctx context.Context, o *relay.Operator) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	o, pool, err := c.operator(ctx, p, "nobody")
	if err != nil {
		return err
	}
	defer pool.Close()
	return outboxError(do(ctx, o))
}

// ofKey names a key. A tenant that is not given is the empty one.
type ofKey struct {
	Tenant string `help:"Tenant of the key."`
	Topic  string `help:"Topic of the key."`
	Key    string `help:"The key."`
}

func (k ofKey) given() bool { return k.Topic != "" && k.Key != "" }

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

func (c choice) blocked() relay.BlockedFilter {
	return relay.BlockedFilter{Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, OlderThan: c.OlderThan, Limit: c.Limit}
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
	filter := relay.ParkedFilter{
		Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, OlderThan: c.OlderThan, After: c.After, Limit: c.Limit,
	}
	if c.MessageID != "" {
		id, err := uuid.Parse(c.MessageID)
		if err != nil {
			return service.Usage("--message-id: want a UUID")
		}
		filter.MessageID = id
	}
	return c.look(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		list, err := o.Parked(ctx, filter)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(p.stdout, orEmpty(list))
		}
		table := tabwriter.NewWriter(p.stdout, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "ID\tMESSAGE ID\tTENANT\tTOPIC\tKEY\tTYPE\tSTATE\tATTEMPTS\tPARKED\tCODE\tREASON")
		for _, e := range list {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", e.ID, e.MessageID, shown(e.Tenant), e.Topic, shown(e.Key), e.Type,
				stateOf(e), e.Attempts, age(time.Since(e.ParkedAt), true), cmp.Or(e.Code, "-"), cmp.Or(e.Reason, "-"))
		}
		return table.Flush()
	})
}

func stateOf(e relay.ParkedEvent) string {
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

// orEmpty makes [] of nothing, which JSON would write as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

type parkedKeysCommand struct {
	looking
	choice
}

func (c *parkedKeysCommand) run(ctx context.Context, p *program) error {
	if err := c.choice.check(); err != nil {
		return err
	}
	return c.look(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		list, err := o.BlockedKeys(ctx, c.blocked())
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(p.stdout, orEmpty(list))
		}
		table := tabwriter.NewWriter(p.stdout, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "TENANT\tTOPIC\tKEY\tSTATE\tSINCE\tWAITING\tOLDEST\tHEAD\tCODE\tREASON")
		for _, k := range list {
			state, head := "parked", "-"
			if k.Releasing {
				state = "releasing"
			}
			if k.Head != nil {
				head = k.Head.String()
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", shown(k.Tenant), k.Topic, shown(k.Key), state,
				age(time.Since(k.Since), true), k.Waiting, age(time.Since(k.Oldest), true), head, cmp.Or(k.Code, "-"), cmp.Or(k.Reason, "-"))
		}
		return table.Flush()
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
	return c.look(ctx, p, func(ctx context.Context, o *relay.Operator) error {
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

func writeParked(w io.Writer, e relay.ParkedEvent, payload bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"id", fmt.Sprint(e.ID)},
		{"message id", e.MessageID.String()},
		{"lane", fmt.Sprint(e.Lane)},
		{"source", shown(e.Source)},
		{"tenant", shown(e.Tenant)},
		{"topic", e.Topic},
		{"key", shown(e.Key)},
		{"type", e.Type},
		{"content type", e.ContentType},
		{"state", stateOf(e)},
		{"attempts", fmt.Sprint(e.Attempts)},
		{"code", cmp.Or(e.Code, "-")},
		{"reason", cmp.Or(e.Reason, "-")},
		{"may be in Kafka", yesNo(e.MaybePublished)},
		{"appended", e.CreatedAt.UTC().Format(time.RFC3339)},
		{"parked", e.ParkedAt.UTC().Format(time.RFC3339)},
		{"payload bytes", sizeOf(e.Bytes)},
	} {
		fmt.Fprintf(table, "%s\t%s\n", line[0], line[1])
	}
	if payload {
		for name, value := range e.Headers {
			fmt.Fprintf(table, "header %s\t%s\n", shown(name), shown(value))
		}
	}
	if err := table.Flush(); err != nil || !payload {
		return err
	}
	if !utf8.Valid(e.Payload) {
		_, err := fmt.Fprintf(w, "\n%q\n", e.Payload)
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", e.Payload)
	return err
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

func (c changing) change(ctx context.Context, p *program, do func(ctx context.Context, o *relay.Operator) error) error {
	if err := c.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	o, pool, err := c.operator(ctx, p, c.Operator)
	if err != nil {
		return err
	}
	defer pool.Close()
	return outboxError(do(ctx, o))
}
