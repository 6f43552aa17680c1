package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
)

// parkedCommand has the operators' commands for parked events, of an outbox or of an inbox. A command of one side only
// is in a struct of its own that embeds that side's commands.
type parkedCommand[S side] struct {
	List     parkedListCommand[S]     `cmd:"" help:"List parked events by their ids."`
	Failures parkedFailuresCommand[S] `cmd:"" help:"Group what is parked by topic, type, error and time."`
	Keys     parkedKeysCommand[S]     `cmd:"" help:"List the keys that are blocked, the longest blocked first."`
	Show     parkedShowCommand[S]     `cmd:"" help:"Show one parked event."`
	Edit     parkedEditCommand[S]     `cmd:"" help:"Change an event's payload, headers or content type before it is released."`
	Release  parkedReleaseCommand[S]  `cmd:"" help:"Let a key's events go, or one that is parked alone."`
	Discard  parkedDiscardCommand[S]  `cmd:"" help:"Give a key's parked events up for good, or one."`
	SkipHead parkedSkipHeadCommand[S] `cmd:"" help:"Give up the first event of a key's list, and release the rest."`
}

// parkedEvent is a parked event for display.
type parkedEvent struct {
	admin.Parked
	consumer string
	details  [][2]string // of one side only
	json     any
}

func (e *parkedEvent) state() string {
	switch {
	case e.Releasing:
		return "releasing"
	case e.Alone && e.Kind != "quarantined":
		return "alone"
	}
	return e.Kind
}

// parkedError returns the error for which the event is parked: its key's error, for an event behind another one.
func (e *parkedEvent) parkedError(ctx context.Context, o parkedOperator) (string, error) {
	if e.Kind != "behind" {
		return errorText(e.Error), nil
	}
	keys, err := o.BlockedKeys(ctx, admin.BlockedFilter{Tenant: &e.Tenant, Topic: e.Topic, Key: e.Key})
	at := slices.IndexFunc(keys, func(k admin.BlockedKey) bool { return k.Consumer == e.consumer })
	switch {
	case err != nil || at < 0: // released or discarded meanwhile
		return errorText(""), err
	case keys[at].HeadID == e.ID:
		return "first of its key, which is parked since an earlier event: " + errorText(keys[at].Error), nil
	}
	return fmt.Sprintf("behind %d: %s", keys[at].HeadID, errorText(keys[at].Error)), nil
}

// filterFlags filter a list. The tenant is a pointer, because it may be empty.
type filterFlags struct {
	Tenant    *string       `line:"" shown:"(any)" help:"Only of this tenant."`
	Topic     string        `line:"" shown:"(any)" help:"Only of this topic."`
	Key       string        `line:"" shown:"(any)" help:"Only of this key."`
	Code      string        `line:"" shown:"(any)" help:"Only with this error code."`
	OlderThan time.Duration `line:"" default:"0s" shown:"(any)" help:"Only what has waited for at least so long."`
	Limit     int           `line:"" default:"100" help:"Most that are listed."`
}

func (c filterFlags) check() error {
	if c.Limit <= 0 || c.OlderThan < 0 {
		return service.Usage("--limit wants a number above zero, --older-than a time that is not negative")
	}
	return nil
}

// messageID parses --message-id; the zero id means any.
func messageID(text string) (id uuid.UUID, err error) {
	if text == "" {
		return id, nil
	}
	if id, err = uuid.Parse(text); err != nil {
		err = service.Usage("--message-id: want a UUID")
	}
	return id, err
}

type parkedListCommand[S side] struct {
	onSide[S]
	readFlags
	filterFlags
	Kind      string `line:"" shown:"(any)" help:"Only of this kind: refused (by Kafka), failed (in an effect), behind (waits behind one of these) or quarantined."`
	MessageID string `line:"" name:"message-id" shown:"(any)" help:"Only the event with this id (ce_id)."`
	After     int64  `line:"" default:"0" help:"Only ids above this one: the last of the page before."`
}

func (c *parkedListCommand[S]) run(ctx context.Context, p *program) error {
	if err := c.check(); err != nil {
		return err
	}
	w := c.Side.words()
	if c.Kind != "" && !slices.Contains(w.kinds, c.Kind) {
		return service.Usage("--kind wants one of %v", w.kinds)
	}
	id, err := messageID(c.MessageID)
	if err != nil {
		return err
	}
	filter := admin.ParkedFilter{
		MessageID: id, Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, Kind: c.Kind, OlderThan: c.OlderThan,
		After: c.After, Limit: c.Limit,
	}
	return c.Side.act(ctx, p, c.Timeout, nobody, func(ctx context.Context, o parkedOperator) error {
		list, err := o.list(ctx, filter)
		if err != nil {
			return err
		}
		p.endsAt(c.Limit, len(list))
		if c.JSON {
			events := make([]any, len(list))
			for i := range list {
				events[i] = list[i].json
			}
			return writeJSON(p.stdout, events)
		}
		head := "ID\t" + w.column("CONSUMER") +
			"MESSAGE ID\tTENANT\tTOPIC\tKEY\tTYPE\tSTATE\tATTEMPTS\tPARKED\tCODE\tERROR"
		return writeList(p.stdout, false, list, head, func(table io.Writer, e parkedEvent) {
			fmt.Fprintf(table, "%d\t%s%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", e.ID, w.column(e.consumer),
				e.MessageID, shown(e.Tenant), e.Topic, shown(e.Key),
				shown(e.Type), e.state(), e.Attempts, age(time.Since(e.ParkedAt), true), errorText(e.Code),
				errorText(e.Error))
		})
	})
}

type parkedKeysCommand[S side] struct {
	onSide[S]
	readFlags
	filterFlags
}

func (c *parkedKeysCommand[S]) run(ctx context.Context, p *program) error {
	if err := c.check(); err != nil {
		return err
	}
	filter := admin.BlockedFilter{
		Tenant: c.Tenant, Topic: c.Topic, Key: c.Key, Code: c.Code, OlderThan: c.OlderThan,
		Limit: c.Limit,
	}
	return c.Side.act(ctx, p, c.Timeout, nobody, func(ctx context.Context, o parkedOperator) error {
		list, err := o.BlockedKeys(ctx, filter)
		if err != nil {
			return err
		}
		p.endsAt(c.Limit, len(list))
		w := c.Side.words()
		head := w.column("CONSUMER") + "TENANT\tTOPIC\tKEY\tSTATE\tSINCE\tWAITING\tOLDEST\tHEAD\tCODE\tERROR"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, k admin.BlockedKey) {
			state := "parked"
			switch {
			case k.Releasing:
				state = "releasing"
			case k.AtBound:
				state = "full" // its partition halts
			}
			fmt.Fprintf(table, "%s%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", w.column(k.Consumer), shown(k.Tenant),
				k.Topic, shown(k.Key), state,
				age(time.Since(k.Since), true), k.Waiting, age(time.Since(k.Oldest), true), idOrNone(k.Head),
				errorText(k.Code), errorText(k.Error))
		})
	})
}

type parkedShowCommand[S side] struct {
	onSide[S]
	readFlags
	ID      int64 `line:"" name:"id" shown:"(required)" help:"Id of the event, as list shows it."`
	Payload bool  `line:"" help:"Show payload and headers, too."`
}

func (c *parkedShowCommand[S]) run(ctx context.Context, p *program) error {
	if c.ID <= 0 {
		return service.Usage("--id is missing: list shows it")
	}
	return c.Side.act(ctx, p, c.Timeout, nobody, func(ctx context.Context, o parkedOperator) error {
		e, err := o.event(ctx, c.ID, c.Payload)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(p.stdout, e.json)
		}
		parkedError, err := e.parkedError(ctx, o)
		if err != nil {
			return err
		}
		lines := append([][2]string{
			{"id", fmt.Sprint(e.ID)},
			{"message id", e.MessageID.String()},
			{"tenant", shown(e.Tenant)},
			{"topic", e.Topic},
			{"key", shown(e.Key)},
			{"type", shown(e.Type)},
			{"state", e.state()},
			{"attempts", fmt.Sprint(e.Attempts)},
			{"code", errorText(e.Code)},
			{"error", parkedError},
			{"parked", e.ParkedAt.UTC().Format(time.RFC3339)},
			{"payload bytes", sizeOf(e.Bytes)},
		}, e.details...)
		if err := writeLines(p.stdout, lines); err != nil || !c.Payload {
			return err
		}
		return writePayload(p.stdout, e.Payload)
	})
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

// writeLines prints names and values.
func writeLines(w io.Writer, lines [][2]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintf(table, "%s\t%s\n", line[0], line[1])
	}
	return table.Flush()
}

// writePayload prints text as it is, and other bytes quoted.
func writePayload(w io.Writer, payload []byte) error {
	format := "\n%s\n"
	if !utf8.Valid(payload) {
		format = "\n%q\n"
	}
	_, err := fmt.Fprintf(w, format, payload)
	return err
}
