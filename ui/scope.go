package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/relay/operator"
)

// Scope is a part of what the databases hold. The zero Scope is nothing.
type Scope struct {
	// Topics are names; with "*" at its end one stands for all that begin so, and "*" for all.
	Topics []string
	// Tenants likewise. "" is that of events without one.
	Tenants []string
}

// sees tells whether an event or a key is within it, which has a topic. A nil Scope is everything.
func (s *Scope) sees(tenant, topic string) bool {
	return s == nil || topic != "" && matches(s.Topics, topic) && matches(s.Tenants, tenant)
}

// whole tells whether all of a topic is within it.
func (s *Scope) whole(topic string) bool {
	return s == nil || matches(s.Topics, topic) && slices.Contains(s.Tenants, "*")
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		begin, many := strings.CutSuffix(p, "*")
		return p == name || many && strings.HasPrefix(name, begin)
	})
}

// forSome are the routes that show and change no more than a Scope. Nobody with one gets to any other.
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

// within refuses a page that tells of more than the person may see.
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

// Shows tells whether somebody has this entry of the navigation.
func (v view) Shows(nav string) bool {
	return v.Opens("GET /" + nav)
}

// Opens tells whether somebody gets to a route.
func (v view) Opens(route string) bool { return v.Who.Scope.opens(route) }

func (s *Scope) opens(route string) bool { return s == nil || slices.Contains(forSome, route) }

// side opens an outbox or inbox for the person who asks, with what that person sees of it.
func (q *request) side(where, consumer, name string) (side, error) {
	s, err := q.db.side(where, consumer, name)
	return q.who.Scope.of(s), err
}

// of is the part of an outbox or inbox that is within the Scope.
func (s *Scope) of(whole side) side {
	if s == nil {
		return whole
	}
	return scoped{whole, s}
}

// scoped is a side of which a person sees a part. What is not seen is answered as what is not there.
type scoped struct {
	side
	scope *Scope
}

// mostLookedAt is how many rows are looked at for a list of those that are seen.
const mostLookedAt = 10_000

func (s scoped) list(ctx context.Context, f operator.ParkedFilter) (seen []event, err error) {
	want := f.Limit
	f.Limit = max(want, page)
	for looked := 0; len(seen) < want && looked < mostLookedAt; looked += f.Limit {
		found, err := s.side.list(ctx, f)
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

// event refuses one that is not seen.
func (s scoped) event(ctx context.Context, id int64) error {
	found, err := s.list(ctx, operator.ParkedFilter{ID: id, Limit: 1})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("event %d: %w", id, operator.ErrNotParked)
	}
	return err
}

func (s scoped) key(tenant, topic, key string) error {
	if !s.scope.sees(tenant, topic) {
		return fmt.Errorf("key %q of topic %q: %w", key, topic, operator.ErrNotParked)
	}
	return nil
}

func (s scoped) reveal(ctx context.Context, id int64, reason string) (event, error) {
	if err := s.event(ctx, id); err != nil {
		return event{}, err
	}
	return s.side.reveal(ctx, id, reason)
}

// EditParked implements side.
func (s scoped) EditParked(ctx context.Context, id int64, edit operator.Edit, reason string) error {
	if err := s.event(ctx, id); err != nil {
		return err
	}
	return s.side.EditParked(ctx, id, edit, reason)
}

// ReleaseEvent implements side.
func (s scoped) ReleaseEvent(ctx context.Context, id int64, reason string) error {
	if err := s.event(ctx, id); err != nil {
		return err
	}
	return s.side.ReleaseEvent(ctx, id, reason)
}

// DiscardEvent implements side.
func (s scoped) DiscardEvent(ctx context.Context, id int64, reason string) (operator.DiscardResult, error) {
	if err := s.event(ctx, id); err != nil {
		return operator.DiscardResult{}, err
	}
	return s.side.DiscardEvent(ctx, id, reason)
}

// ReleaseKey implements side.
func (s scoped) ReleaseKey(ctx context.Context, tenant, topic, key, reason string) (int64, error) {
	if err := s.key(tenant, topic, key); err != nil {
		return 0, err
	}
	return s.side.ReleaseKey(ctx, tenant, topic, key, reason)
}

// DiscardKey implements side.
func (s scoped) DiscardKey(ctx context.Context, tenant, topic, key, reason string) (operator.DiscardResult, error) {
	if err := s.key(tenant, topic, key); err != nil {
		return operator.DiscardResult{}, err
	}
	return s.side.DiscardKey(ctx, tenant, topic, key, reason)
}

// BlockedKeys implements side: those that are seen of the longest blocked ones that a filter chooses.
func (s scoped) BlockedKeys(ctx context.Context, f operator.BlockedFilter) ([]operator.BlockedKey, error) {
	f.Limit = mostAtOnce
	list, err := s.side.BlockedKeys(ctx, f)
	return slices.DeleteFunc(list, func(k operator.BlockedKey) bool { return !s.scope.sees(k.Tenant, k.Topic) }), err
}

// Failures implements side, likewise.
func (s scoped) Failures(ctx context.Context, f operator.FailureFilter) ([]operator.Failure, error) {
	f.Limit = mostLookedAt
	list, err := s.side.Failures(ctx, f)
	return s.scope.failures(list), err
}

func (s *Scope) failures(list []operator.Failure) (seen []operator.Failure) {
	for _, f := range list {
		if s.sees(f.Tenant, f.Topic) {
			seen = append(seen, f)
		}
	}
	return seen
}
