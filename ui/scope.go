package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// forSome lists the routes that respect a Scope. A viewer with a Scope gets to no other route.
var forSome = []string{
	"GET /{$}", "GET /static/{version}/{file}", "GET /topics", "GET /keys", "GET /failures", "GET /audit",
	"GET /db/{db}/{side}/events", "GET /db/{db}/{side}/events/{id}", "POST /db/{db}/{side}/events/{id}/reveal",
	"POST /db/{db}/{side}/events/{id}/preview", "POST /db/{db}/{side}/events/{id}/edit",
	"POST /db/{db}/{side}/events/{id}/headers/preview", "POST /db/{db}/{side}/events/{id}/headers/edit",
	"POST /db/{db}/{side}/events/{id}/release", "POST /db/{db}/{side}/events/{id}/discard",
	"POST /db/{db}/{side}/keys/release", "POST /db/{db}/{side}/keys/discard", "GET /db/{db}/{side}/failures",
	"POST /db/{db}/{side}/failures/release", "POST /db/{db}/{side}/failures/discard",
	"POST /db/{db}/topics/pause", "POST /db/{db}/topics/resume", "GET /topic/{db}/{topic}",
	"POST /db/{db}/topics/discard", "GET /search", "GET /scheduled", "GET /archive", "GET /db/{db}/replay/plan",
	"POST /db/{db}/replay", "POST /db/{db}/replay/stop",
}

// within refuses a page that would show more than the viewer's Scope.
func (q *request) within() error {
	method, path, _ := strings.Cut(q.Pattern, " ")
	if q.who.Scope.opens(method + " " + strings.TrimPrefix(path, q.h.cfg.Prefix)) {
		return nil
	}
	return &refusal{
		http.StatusForbidden, "You may not see this",
		"This page tells of all topics and tenants, and you may see some of them.",
	}
}

// Shows reports whether the viewer gets this entry of the navigation.
func (v view) Shows(nav string) bool {
	return v.Opens("GET /" + nav)
}

// Opens reports whether the viewer may open a route.
func (v view) Opens(route string) bool { return v.Who.Scope.opens(route) }

func (s *Scope) opens(route string) bool { return s == nil || slices.Contains(forSome, route) }

// side opens an outbox or inbox, limited to the viewer's Scope.
func (q *request) side(where, consumer, name string) (reads.Side, error) {
	s, err := q.db.Side(where, consumer, name)
	return q.who.Scope.of(s), err
}

// of limits an outbox or inbox to the Scope.
func (s *Scope) of(whole reads.Side) reads.Side {
	if s == nil {
		return whole
	}
	return scoped{whole, s}
}

// scoped limits a side to a Scope. It answers for events outside of the Scope as if they did not exist.
type scoped struct {
	reads.Side
	scope *Scope
}

// mostLookedAt bounds how many rows are read for a list within a Scope.
const mostLookedAt = 10_000

func (s scoped) List(ctx context.Context, f admin.ParkedFilter) (seen []reads.Event, err error) {
	want := f.Limit
	f.Limit = max(want, reads.Page)
	for looked := 0; len(seen) < want && looked < mostLookedAt; looked += f.Limit {
		found, err := s.Side.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for i := range found {
			f.After = found[i].ID
			if s.scope.sees(found[i].Tenant, found[i].Topic) {
				seen = append(seen, found[i])
			}
		}
		if len(found) < f.Limit {
			break
		}
	}
	return seen[:min(len(seen), want)], nil
}

// event refuses an event outside of the Scope.
func (s scoped) event(ctx context.Context, id int64) error {
	found, err := s.List(ctx, admin.ParkedFilter{ID: id, Limit: 1})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("event %d: %w", id, admin.ErrNotParked)
	}
	return err
}

func (s scoped) key(tenant, topic, key string) error {
	if !s.scope.sees(tenant, topic) {
		return fmt.Errorf("key %q of topic %q: %w", key, topic, admin.ErrNotParked)
	}
	return nil
}

func (s scoped) Reveal(ctx context.Context, id int64, reason string) (reads.Event, error) {
	if err := s.event(ctx, id); err != nil {
		return reads.Event{}, err
	}
	return s.Side.Reveal(ctx, id, reason)
}

// EditParked implements side.
func (s scoped) EditParked(ctx context.Context, id int64, edit admin.Edit, reason string) error {
	if err := s.event(ctx, id); err != nil {
		return err
	}
	return s.Side.EditParked(ctx, id, edit, reason)
}

// ReleaseEvent implements side.
func (s scoped) ReleaseEvent(ctx context.Context, id int64, reason string) error {
	if err := s.event(ctx, id); err != nil {
		return err
	}
	return s.Side.ReleaseEvent(ctx, id, reason)
}

// DiscardEvent implements side.
func (s scoped) DiscardEvent(ctx context.Context, id int64, reason string) (admin.DiscardResult, error) {
	if err := s.event(ctx, id); err != nil {
		return admin.DiscardResult{}, err
	}
	return s.Side.DiscardEvent(ctx, id, reason)
}

// ReleaseKey implements side.
func (s scoped) ReleaseKey(ctx context.Context, tenant, topic, key string, seen admin.Seen, reason string) (int64,
	error,
) {
	if err := s.key(tenant, topic, key); err != nil {
		return 0, err
	}
	return s.Side.ReleaseKey(ctx, tenant, topic, key, seen, reason)
}

// DiscardKey implements side.
func (s scoped) DiscardKey(ctx context.Context, tenant, topic, key string, seen admin.Seen, reason string) (
	admin.DiscardResult, error,
) {
	if err := s.key(tenant, topic, key); err != nil {
		return admin.DiscardResult{}, err
	}
	return s.Side.DiscardKey(ctx, tenant, topic, key, seen, reason)
}

// BlockedKeys implements side. It returns the keys in the Scope, of the longest blocked ones that a filter selects.
func (s scoped) BlockedKeys(ctx context.Context, f admin.BlockedFilter) ([]admin.BlockedKey, error) {
	f.Limit = mostAtOnce
	list, err := s.Side.BlockedKeys(ctx, f)
	return slices.DeleteFunc(list, func(k admin.BlockedKey) bool { return !s.scope.sees(k.Tenant, k.Topic) }), err
}

// Failures implements side, like BlockedKeys.
func (s scoped) Failures(ctx context.Context, f admin.FailureFilter) ([]admin.Failure, error) {
	f.Limit = mostLookedAt
	list, err := s.Side.Failures(ctx, f)
	return s.scope.failures(list), err
}

func (s *Scope) failures(list []admin.Failure) (seen []admin.Failure) {
	for _, f := range list {
		if s.sees(f.Tenant, f.Topic) {
			seen = append(seen, f)
		}
	}
	return seen
}
