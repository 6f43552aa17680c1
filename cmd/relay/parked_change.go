package main

import (
	"context"
	"os"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/ui/verbs"
)

// changeParked opens the side for a change: of the event with that id, or without an id of a key.
func changeParked(ctx context.Context, p *program, s side, c changeFlags, id int64,
	do func(ctx context.Context, o parkedOperator) error,
) error {
	if id <= 0 {
		if err := s.checkKeyFlags(); err != nil {
			return err
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	return s.act(ctx, p, c.Timeout, c.Operator, do)
}

type parkedEditCommand[S side] struct {
	onSide[S]
	changeFlags
	ID          int64             `line:"" name:"id" shown:"(required)" help:"Id of the event, as list shows it."`
	PayloadFile string            `line:"" placeholder:"PATH" help:"File with the new payload, byte for byte."`
	AnyBytes    bool              `line:"" help:"The new payload may be no JSON, though the old one is."`
	Tombstone   bool              `line:"" help:"Make it a tombstone: no payload."`
	Header      map[string]string `line:"" mapsep:"none" placeholder:"NAME=VALUE" help:"All headers that it is to have, each with a flag of its own. Left out: they stay."`
	NoHeaders   bool              `line:"" help:"Take all headers away."`
	ContentType string            `line:"" shown:"(as it is)" help:"The new content type."`
}

// Help is the longer text of --help.
func (c *parkedEditCommand[S]) Help() string { return c.Side.words().edited }

func (c *parkedEditCommand[S]) run(ctx context.Context, p *program) error {
	edit, err := c.edit()
	if err != nil {
		return err
	}
	return changeParked(ctx, p, c.Side, c.changeFlags, c.ID, func(ctx context.Context, o parkedOperator) error {
		if err := o.EditParked(ctx, c.ID, edit, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"id": c.ID}, "Event %d is changed. It stays parked until it is released.",
			c.ID)
	})
}

func (c *parkedEditCommand[S]) edit() (edit admin.Edit, err error) {
	switch {
	case c.ID <= 0:
		return edit, service.Usage("--id is missing: list shows it")
	case c.PayloadFile != "" && c.Tombstone:
		return edit, service.Usage("choose one of --payload-file and --tombstone")
	case len(c.Header) > 0 && c.NoHeaders:
		return edit, service.Usage("choose one of --header and --no-headers")
	case c.PayloadFile != "":
		payload, err := os.ReadFile(c.PayloadFile)
		if err != nil {
			return edit, service.Usage("--payload-file: %w", err)
		}
		if payload == nil {
			payload = []byte{}
		}
		edit.Payload, edit.AnyBytes = &payload, c.AnyBytes
	case c.Tombstone:
		edit.Payload = new([]byte)
	}
	if len(c.Header) > 0 || c.NoHeaders {
		headers := c.Header
		if headers == nil {
			headers = map[string]string{}
		}
		edit.Headers = &headers
	}
	if c.ContentType != "" {
		edit.ContentType = &c.ContentType
	}
	if edit == (admin.Edit{}) {
		return edit, service.Usage("nothing to change: give --payload-file, --tombstone, --header, --no-headers or " +
			"--content-type")
	}
	return edit, nil
}

type parkedReleaseCommand[S side] struct {
	onSide[S]
	Args verbs.ReleaseParked `embed:""`
	groupFlags
	changeFlags
}

// Help is the longer text of --help.
func (c *parkedReleaseCommand[S]) Help() string { return c.Side.words().released }

func (c *parkedReleaseCommand[S]) run(ctx context.Context, p *program) error {
	v := c.Args
	v.Where = c.Side.words().side
	if err := c.groupFlags.check(v, v.ParkedKey, v.ID); err != nil {
		return err
	}
	return c.groupFlags.act(ctx, p, c.Side, c.changeFlags, v.ID, func(ctx context.Context, o parkedOperator) error {
		if c.All {
			return c.releaseAll(ctx, p, o, v.Where)
		}
		return perform[admin.ParkedOperator](ctx, p, o, v, c.changeFlags, "")
	})
}

type parkedDiscardCommand[S side] struct {
	onSide[S]
	Args verbs.DiscardParked `embed:""`
	groupFlags
	changeFlags
}

// Help is the longer text of --help.
func (c *parkedDiscardCommand[S]) Help() string { return c.Side.words().gone }

func (c *parkedDiscardCommand[S]) run(ctx context.Context, p *program) error {
	v := c.Args
	v.Where = c.Side.words().side
	if err := c.groupFlags.check(v, v.ParkedKey, v.ID); err != nil {
		return err
	}
	return c.groupFlags.act(ctx, p, c.Side, c.changeFlags, v.ID, func(ctx context.Context, o parkedOperator) error {
		if c.All {
			return c.discardAll(ctx, p, o)
		}
		return perform[admin.ParkedOperator](ctx, p, o, v, c.changeFlags, "")
	})
}

type parkedSkipHeadCommand[S side] struct {
	onSide[S]
	changeFlags
	verbs.ParkedKey
	Keep bool `line:"" help:"Leave the rest parked instead of releasing it."`
}

func (c *parkedSkipHeadCommand[S]) run(ctx context.Context, p *program) error {
	if c.Topic == "" || c.Key == "" || c.Head < 0 || c.Most < 0 {
		return service.Usage("--topic and --key name the key (and --tenant, if it has one); --head and --most want " +
			"numbers above zero")
	}
	return changeParked(ctx, p, c.Side, c.changeFlags, 0, func(ctx context.Context, o parkedOperator) error {
		done, err := o.SkipHead(ctx, c.Tenant, c.Topic, c.Key, c.Seen(), c.Keep, c.Reason)
		if err != nil {
			return err
		}
		rest, again := "the rest of the key stays parked", ""
		if !c.Keep {
			rest = verbs.Plural(done.Released, "event") + " behind it are released"
			again = c.Side.words().side.Again()
		}
		return c.report(p, done, "Event %d (%s) is given up for good; %s.%s%s", done.ID, done.MessageID, rest, again,
			verbs.MaybePublished(done.MaybePublished))
	})
}
