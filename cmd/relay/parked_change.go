package main

import (
	"context"
	"fmt"
	"os"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
)

// The flags of what is done to parked events, the same for an outbox and an inbox.

type editFlags struct {
	ID          int64             `name:"id" shown:"(required)" help:"Id of the event, as list shows it."`
	PayloadFile string            `placeholder:"PATH" help:"File with the new payload, byte for byte."`
	Tombstone   bool              `help:"Make it a tombstone: no payload."`
	Header      map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"All headers that it is to have, each with a flag of its own. Left out: they stay."`
	NoHeaders   bool              `help:"Take all headers away."`
	ContentType string            `shown:"(as it is)" help:"The new content type."`
}

func (c editFlags) edit() (edit operator.Edit, err error) {
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
	if edit == (operator.Edit{}) {
		return edit, service.Usage("nothing to change: give --payload-file, --tombstone, --header, --no-headers or --content-type")
	}
	return edit, nil
}

type releaseFlags struct {
	ofKey
	ID   int64  `name:"id" help:"One event that is parked alone: keyless, parked without its key, or quarantined."`
	All  bool   `help:"Every parked key and every lone event, of --topic and --code if they are given. Quarantined events stay."`
	Code string `help:"With --all: only with this code of the reason."`
}

func (c releaseFlags) check() error { return chosenOne(c.ofKey, c.ID, c.All) }

func (c releaseFlags) release(ctx context.Context, d desk, reason string, say sayer) error {
	switch {
	case c.All:
		return c.releaseAll(ctx, d, reason, say)
	case c.ID > 0:
		if err := d.ReleaseEvent(ctx, c.ID, reason); err != nil {
			return err
		}
		return say(map[string]any{"events": 1}, "Event %d is released: %s it.", c.ID, d.who())
	}
	n, err := d.ReleaseKey(ctx, c.Tenant, c.Topic, c.Key, reason)
	if err != nil {
		return err
	}
	return say(map[string]any{"keys": 1, "events": n}, "Key %s of topic %s is released: %s the %d events of its list, in order.", shown(c.Key), c.Topic, d.who(), n)
}

// releaseAll goes page by page. The longest blocked keys come first, and a release begins that time anew: so each page
// is a new first one, behind those that are being released already.
func (c releaseFlags) releaseAll(ctx context.Context, d desk, reason string, say sayer) error {
	const page = 1000
	var keys, events int64
	seen, passed := map[ofKey]bool{}, 0
	for more := true; more; {
		list, err := d.keys(ctx, c.Topic, c.Code, page+passed)
		if err != nil {
			return err
		}
		more = false
		for _, k := range list {
			if seen[k.ofKey] {
				continue
			}
			more, seen[k.ofKey] = true, true
			if k.releasing {
				passed++
				continue
			}
			n, err := d.ReleaseKey(ctx, k.Tenant, k.Topic, k.Key, reason)
			if err != nil && !d.overtaken(err) {
				return err
			}
			keys, events = keys+1, events+n
		}
	}
	var lone int64
	for after, more := int64(0), true; more; {
		list, err := d.events(ctx, c.ofKey, c.Code, after, page)
		if err != nil {
			return err
		}
		more = len(list) == page
		for _, e := range list {
			if after = e.id; !e.alone || e.releasing || e.quarantined {
				continue
			}
			if err := d.ReleaseEvent(ctx, e.id, reason); err != nil && !d.overtaken(err) {
				return err
			}
			lone++
		}
	}
	return say(map[string]any{"keys": keys, "events": events + lone},
		"%d keys and %d lone events are released, %d events in all: %s them, each key in order.", keys, lone, events+lone, d.who())
}

type discardFlags struct {
	ofKey
	ID int64 `name:"id" help:"One event."`
}

func (c discardFlags) check() error { return chosenOne(c.ofKey, c.ID, false) }

func (c discardFlags) discard(ctx context.Context, d desk, reason string, say sayer) error {
	var gone operator.DiscardResult
	var err error
	if c.ID > 0 {
		gone, err = d.discardEvent(ctx, c.ID, reason)
	} else {
		gone, err = d.discardKey(ctx, c.ofKey, reason)
	}
	if err != nil {
		return err
	}
	return say(map[string]any{"events": gone.Events, "may_appear": gone.MayAppear}, "%d events are given up for good.%s", gone.Events, mayAppear(gone))
}

func mayAppear(d operator.DiscardResult) string {
	if d.MayAppear == 0 {
		return ""
	}
	return fmt.Sprintf(" An attempt to send %d of them may have reached Kafka: each may still appear once, late and out of its order.", d.MayAppear)
}

type skipHeadFlags struct {
	ofKey
	Keep bool `help:"Leave the rest parked instead of releasing it."`
}

func (c skipHeadFlags) check() error {
	if c.Topic == "" || c.Key == "" {
		return service.Usage("--topic and --key name the key (and --tenant, if it has one)")
	}
	return nil
}

// skip gives up the first event of a key's list and releases the rest, each with its own row in the audit.
func (c skipHeadFlags) skip(ctx context.Context, d desk, reason string, say sayer) error {
	head, err := headOf(ctx, d, c.ofKey)
	if err != nil {
		return err
	}
	gone, err := d.discardEvent(ctx, head.id, reason)
	if err != nil {
		return err
	}
	done := map[string]any{"id": head.id, "message_id": head.messageID, "may_appear": gone.MayAppear, "released": int64(0)}
	if c.Keep {
		return say(done, "Event %d (%s) is given up for good; the rest of the key stays parked.%s", head.id, head.messageID, mayAppear(gone))
	}
	n, err := d.ReleaseKey(ctx, c.Tenant, c.Topic, c.Key, reason)
	if err != nil && !d.overtaken(err) {
		return err
	}
	done["released"] = n
	return say(done, "Event %d (%s) is given up for good, and the %d events behind it are released.%s", head.id, head.messageID, n, mayAppear(gone))
}

// headOf is the first event of a key's list.
func headOf(ctx context.Context, d desk, k ofKey) (deskEvent, error) {
	for after := int64(0); ; {
		list, err := d.events(ctx, k, "", after, 100)
		if err != nil {
			return deskEvent{}, err
		}
		for _, e := range list {
			if after = e.id; !e.alone {
				return e, nil
			}
		}
		if len(list) == 0 {
			return deskEvent{}, fmt.Errorf("key %s of topic %s: %w", shown(k.Key), k.Topic, operator.ErrNotParked)
		}
	}
}

// chosenOne refuses a command that names nothing, or two things.
func chosenOne(k ofKey, id int64, all bool) error {
	switch {
	case all && (id > 0 || k.Key != "" || k.Tenant != ""), id > 0 && (k != ofKey{}), !all && id <= 0 && (k.Topic == "" || k.Key == ""):
		return service.Usage("name what is meant: a key by --topic and --key (and --tenant, if it has one), or an event by --id")
	}
	return nil
}
