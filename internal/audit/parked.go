package audit

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
)

// BlockedKeys returns the parked keys that a statement selects.
func (p *Person) BlockedKeys(ctx context.Context, statement string, args ...any) ([]admin.BlockedKey, error) {
	return List(ctx, p, "listing parked keys", func(row pgx.CollectableRow) (k admin.BlockedKey, err error) {
		var tenant, key []byte
		err = row.Scan(&k.Consumer, &tenant, &k.Topic, &key, &k.Releasing, &k.AtBound, &k.Since, &k.Error, &k.Code,
			&k.Waiting, &k.Oldest, &k.HeadID, &k.Head)
		k.Tenant, k.Key = string(tenant), string(key)
		return k, err
	}, statement, args...)
}

// NoJSON reports that an edit replaces JSON (was) by text that is not JSON (is); the error names the first wrong byte.
// It returns nil for a tombstone.
func NoJSON(was, is []byte) error {
	var any json.RawMessage
	err := json.Unmarshal(is, &any)
	broken, ok := errors.AsType[*json.SyntaxError](err)
	if !ok || is == nil || !json.Valid(was) {
		return nil
	}
	return fmt.Errorf("at byte %d: %w", broken.Offset, err)
}

// CheckBefore refuses an edit whose Before or HeadersBefore do not match the event. Unless AnyBytes is set, it also
// refuses to replace a JSON payload by another kind of payload.
func CheckBefore(e admin.Edit, id int64, payload []byte, contentType string, own [][2]string) error {
	if e.Before != nil && sha256.Sum256(payload) != *e.Before ||
		e.HeadersBefore != nil && admin.HeadersSum(contentType, own) != *e.HeadersBefore {
		return fmt.Errorf("event %d: %w", id, admin.ErrEdited)
	}
	if e.Payload == nil || e.AnyBytes {
		return nil
	}
	if err := NoJSON(payload, *e.Payload); err != nil {
		return fmt.Errorf("event %d: its payload is JSON, and the new one is not, %w (if bytes are meant: --any-bytes)",
			id, err)
	}
	return nil
}

// OwnHeaders returns the headers that the record's producer chose, and its content type.
func OwnHeaders(headers []event.Header) (contentType string, own [][2]string) {
	for _, h := range headers {
		switch {
		case h.Key == event.HeaderContentType:
			contentType = string(h.Value)
		case !event.ReservedHeader(h.Key):
			own = append(own, [2]string{h.Key, string(h.Value)})
		}
	}
	return contentType, own
}

// Pairs are headers by name.
func Pairs(headers map[string]string) (own [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		own = append(own, [2]string{name, headers[name]})
	}
	return own
}

// CheckHeaders refuses headers with reserved names and, if text, headers that Postgres cannot store as text.
func CheckHeaders(e admin.Edit, text bool) error {
	if e.Headers == nil {
		return nil
	}
	for name, value := range *e.Headers {
		switch {
		case event.ReservedHeader(name):
			return fmt.Errorf("header %q is reserved", name)
		case text && !(event.Storable(name) && event.Storable(value)):
			return fmt.Errorf("header %q is not text: want UTF-8 without U+0000", name)
		}
	}
	return nil
}

// Changed names the changed fields for the audit, without their values.
func Changed(e admin.Edit) map[string]any {
	return map[string]any{
		"payload": e.Payload != nil, "headers": e.Headers != nil,
		"content_type": e.ContentType != nil,
	}
}

// KeyList is the list of a parked key, under the lock of a change.
type KeyList struct {
	Head, Events int64 // ID of its first event, 0 for none; how many there are
	Releasing    bool
}

// CheckSeen refuses a change of another list than the one that was seen.
func (l KeyList) CheckSeen(topic, key string, seen admin.Seen) error {
	if seen.Head != 0 && seen.Head != l.Head || seen.Most != 0 && seen.Most < l.Events {
		return fmt.Errorf("key %q of topic %q %w: now it has %d events, and event %d is the first; look at it again",
			key, topic, admin.ErrAnotherList, l.Events, l.Head)
	}
	return nil
}

// CheckHead refuses to give up a first event that nobody named and that has not failed: a second skip would take it.
func (l KeyList) CheckHead(e admin.Parked, seen admin.Seen) error {
	switch {
	case seen.Head != 0:
		return nil
	case l.Releasing:
		return fmt.Errorf("event %d %w (to give it up nevertheless, name it as the head)", e.ID, admin.ErrReleasing)
	case e.Kind == "behind" && e.Code == "":
		return fmt.Errorf("event %d is the first now, and has not failed: an event before it is gone; release the "+
			"key, or, to give this one up, too, name it as the head: it %w", e.ID, admin.ErrAnotherList)
	}
	return nil
}

// ErrInList is the error for a release of one event with a key, which would break the key's order.
func ErrInList(id int64) error {
	return fmt.Errorf("event %d is in the list of its key: release the key, or discard the events before it", id)
}
