package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay"
)

type parkedEditCommand struct {
	changing
	ID          int64             `name:"id" shown:"(required)" help:"Id of the event, as list shows it."`
	PayloadFile string            `placeholder:"PATH" help:"File with the new payload, byte for byte."`
	Tombstone   bool              `help:"Make it a tombstone: no payload."`
	Header      map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"All headers that it is to have, each with a flag of its own. Left out: they stay."`
	NoHeaders   bool              `help:"Take all headers away."`
	ContentType string            `shown:"(as it is)" help:"The new content type."`
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
	return c.change(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		if err := o.EditParked(ctx, c.ID, edit, c.Reason); err != nil {
			return err
		}
		return c.say(p, map[string]any{"id": c.ID}, "Event %d is changed. It stays parked until it is released.", c.ID)
	})
}

func (c *parkedEditCommand) edit() (edit relay.Edit, err error) {
	switch {
	case c.ID <= 0:
		return edit, service.Usage("--id is missing: relay parked list shows it")
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
		edit.Payload = &payload
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
	if edit == (relay.Edit{}) {
		return edit, service.Usage("nothing to change: give --payload-file, --tombstone, --header, --no-headers or --content-type")
	}
	return edit, nil
}

// say prints what was done.
func (c changing) say(p *program, done map[string]any, format string, args ...any) error {
	if c.JSON {
		return writeJSON(p.stdout, done)
	}
	_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
	return err
}

// chosenOne refuses a command that names nothing, or two things.
func chosenOne(k ofKey, id int64, all bool) error {
	switch {
	case all && (id > 0 || k.Key != "" || k.Tenant != ""), id > 0 && (k != ofKey{}), !all && id <= 0 && (k.Topic == "" || k.Key == ""):
		return service.Usage("name what is meant: a key by --topic and --key (and --tenant, if it has one), or an event by --id")
	}
	return nil
}

// ignored leaves out that somebody else was quicker.
func ignored(err error) error {
	if errors.Is(err, relay.ErrNotParked) || errors.Is(err, relay.ErrReleasing) {
		return nil
	}
	return err
}

type parkedReleaseCommand struct {
	changing
	ofKey
	ID   int64  `name:"id" help:"One event that is parked alone: keyless, or parked without its key."`
	All  bool   `help:"Every parked key and every lone event, of --topic and --code if they are given."`
	Code string `help:"With --all: only with this code of the reason."`
}

// Help is the longer text of --help.
func (*parkedReleaseCommand) Help() string {
	return `Names a key (--topic, --key, and --tenant if it has one), one event (--id), or --all. The relay that owns the lane publishes a key's list in
its order, under new numbers and the same ids; what was appended meanwhile comes after it. When Kafka refuses one of them again, the
key is parked again. Nothing happens while no relay runs.`
}

func (c *parkedReleaseCommand) run(ctx context.Context, p *program) error {
	if err := chosenOne(c.ofKey, c.ID, c.All); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		switch {
		case c.All:
			return c.releaseAll(ctx, p, o)
		case c.ID > 0:
			if err := o.ReleaseEvent(ctx, c.ID, c.Reason); err != nil {
				return err
			}
			return c.say(p, map[string]any{"events": 1}, "Event %d is released: the owner of its lane publishes it.", c.ID)
		}
		n, err := o.ReleaseKey(ctx, c.Tenant, c.Topic, c.Key, c.Reason)
		if err != nil {
			return err
		}
		return c.say(p, map[string]any{"keys": 1, "events": n}, "Key %s of topic %s is released: the owner of its lane publishes the %d events of its list, in order.", shown(c.Key), c.Topic, n)
	})
}

// releaseAll goes page by page. The longest blocked keys come first, and a release begins that time anew: so each page is a
// new first one, behind those that are being released already.
func (c *parkedReleaseCommand) releaseAll(ctx context.Context, p *program, o *relay.Operator) error {
	const page = 1000
	var keys, events int64
	seen, passed := map[ofKey]bool{}, 0
	for more := true; more; {
		list, err := o.BlockedKeys(ctx, relay.BlockedFilter{Topic: c.Topic, Code: c.Code, Limit: page + passed})
		if err != nil {
			return err
		}
		more = false
		for _, k := range list {
			id := ofKey{Tenant: k.Tenant, Topic: k.Topic, Key: k.Key}
			if seen[id] {
				continue
			}
			more, seen[id] = true, true
			if k.Releasing {
				passed++
				continue
			}
			n, err := o.ReleaseKey(ctx, k.Tenant, k.Topic, k.Key, c.Reason)
			if ignored(err) != nil {
				return err
			}
			keys, events = keys+1, events+n
		}
	}
	lone, err := c.releaseLone(ctx, o, page)
	if err != nil {
		return err
	}
	return c.say(p, map[string]any{"keys": keys, "events": events + lone},
		"%d keys and %d lone events are released, %d events in all: the owners of their lanes publish them, each key in order.", keys, lone, events+lone)
}

// releaseLone releases events that are parked alone.
func (c *parkedReleaseCommand) releaseLone(ctx context.Context, o *relay.Operator, page int) (events int64, err error) {
	for after, more := int64(0), true; more; {
		list, err := o.Parked(ctx, relay.ParkedFilter{Topic: c.Topic, Code: c.Code, After: after, Limit: page})
		if err != nil {
			return events, err
		}
		more = len(list) == page
		for _, e := range list {
			if after = e.ID; !e.Alone || e.Releasing {
				continue
			}
			if err := o.ReleaseEvent(ctx, e.ID, c.Reason); ignored(err) != nil {
				return events, err
			}
			events++
		}
	}
	return events, nil
}

type parkedDiscardCommand struct {
	changing
	ofKey
	ID int64 `name:"id" help:"One event."`
}

// Help is the longer text of --help.
func (*parkedDiscardCommand) Help() string {
	return `Names a key (--topic, --key, and --tenant if it has one) or one event (--id). It cannot be undone. Of an event that may be in Kafka already
it cannot promise anything: it may still appear once, late.`
}

func (c *parkedDiscardCommand) run(ctx context.Context, p *program) error {
	if err := chosenOne(c.ofKey, c.ID, false); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		var d relay.Discarded
		var err error
		if c.ID > 0 {
			d, err = o.DiscardEvent(ctx, c.ID, c.Reason)
		} else {
			d, err = o.DiscardKey(ctx, c.Tenant, c.Topic, c.Key, c.Reason)
		}
		if err != nil {
			return err
		}
		return c.say(p, map[string]any{"events": d.Events, "may_appear": d.MayAppear}, "%d events are deleted for good.%s", d.Events, mayAppear(d))
	})
}

func mayAppear(d relay.Discarded) string {
	if d.MayAppear == 0 {
		return ""
	}
	return fmt.Sprintf(" An attempt to send %d of them may have reached Kafka: each may still appear once, late and out of its order.", d.MayAppear)
}

type parkedSkipHeadCommand struct {
	changing
	ofKey
	Keep bool `help:"Leave the rest parked instead of releasing it."`
}

func (c *parkedSkipHeadCommand) run(ctx context.Context, p *program) error {
	if !c.given() {
		return service.Usage("--topic and --key name the key (and --tenant, if it has one)")
	}
	return c.change(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		head, err := headOf(ctx, o, c.ofKey)
		if err != nil {
			return err
		}
		d, err := o.DiscardEvent(ctx, head.ID, c.Reason)
		if err != nil {
			return err
		}
		done := map[string]any{"id": head.ID, "message_id": head.MessageID, "may_appear": d.MayAppear, "released": int64(0)}
		if c.Keep {
			return c.say(p, done, "Event %d (%s) is deleted for good; the rest of the key stays parked.%s", head.ID, head.MessageID, mayAppear(d))
		}
		n, err := o.ReleaseKey(ctx, c.Tenant, c.Topic, c.Key, c.Reason)
		if ignored(err) != nil {
			return err
		}
		done["released"] = n
		return c.say(p, done, "Event %d (%s) is deleted for good, and the %d events behind it are released.%s", head.ID, head.MessageID, n, mayAppear(d))
	})
}

// headOf is the first event of a key's list.
func headOf(ctx context.Context, o *relay.Operator, k ofKey) (relay.ParkedEvent, error) {
	for after := int64(0); ; {
		list, err := o.Parked(ctx, relay.ParkedFilter{Tenant: &k.Tenant, Topic: k.Topic, Key: k.Key, After: after})
		if err != nil {
			return relay.ParkedEvent{}, err
		}
		for _, e := range list {
			if after = e.ID; !e.Alone {
				return e, nil
			}
		}
		if len(list) == 0 {
			return relay.ParkedEvent{}, fmt.Errorf("key %s of topic %s: %w", shown(k.Key), k.Topic, relay.ErrNotParked)
		}
	}
}
