package main

import (
	"context"
	"errors"

	"github.com/google/uuid"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/relay/operator"
)

// desk is where people act on parked events: an outbox's or an inbox's.
type desk interface {
	ReleaseKey(ctx context.Context, tenant, topic, key, reason string) (events int64, err error)
	ReleaseEvent(ctx context.Context, id int64, reason string) error
	discardEvent(ctx context.Context, id int64, reason string) (operator.DiscardResult, error)
	discardKey(ctx context.Context, k ofKey, reason string) (operator.DiscardResult, error)
	// keys lists parked keys, the longest blocked first.
	keys(ctx context.Context, topic, code string, limit int) ([]deskKey, error)
	// events lists parked events by id. A key's are those of its tenant; without a key the tenant is any.
	events(ctx context.Context, of ofKey, code string, after int64, limit int) ([]deskEvent, error)
	// overtaken: somebody else was quicker.
	overtaken(err error) bool
	// who does what with what is released, as the beginning of a clause.
	who() string
}

type deskKey struct {
	ofKey
	releasing bool
}

type deskEvent struct {
	id                            int64
	messageID                     uuid.UUID
	alone, releasing, quarantined bool
}

// tenantOf is the filter of an event's tenant.
func tenantOf(k ofKey) *string {
	if k.Key == "" && k.Tenant == "" {
		return nil
	}
	return &k.Tenant
}

type outboxDesk struct{ *operator.Operator }

func (d outboxDesk) who() string { return "the owner of its lane publishes" }

func (d outboxDesk) overtaken(err error) bool {
	return errors.Is(err, operator.ErrNotParked) || errors.Is(err, operator.ErrReleasing)
}

func (d outboxDesk) discardEvent(ctx context.Context, id int64, reason string) (operator.DiscardResult, error) {
	return d.DiscardEvent(ctx, id, reason)
}

func (d outboxDesk) discardKey(ctx context.Context, k ofKey, reason string) (operator.DiscardResult, error) {
	return d.DiscardKey(ctx, k.Tenant, k.Topic, k.Key, reason)
}

func (d outboxDesk) keys(ctx context.Context, topic, code string, limit int) (list []deskKey, err error) {
	found, err := d.BlockedKeys(ctx, operator.BlockedFilter{Topic: topic, Code: code, Limit: limit})
	for _, k := range found {
		list = append(list, deskKey{ofKey{k.Tenant, k.Topic, k.Key}, k.Releasing})
	}
	return list, err
}

func (d outboxDesk) events(ctx context.Context, of ofKey, code string, after int64, limit int) (list []deskEvent, err error) {
	found, err := d.Parked(ctx, operator.ParkedFilter{Tenant: tenantOf(of), Topic: of.Topic, Key: of.Key, Code: code, After: after, Limit: limit})
	for _, e := range found {
		list = append(list, deskEvent{id: e.ID, messageID: e.MessageID, alone: e.Alone, releasing: e.Releasing})
	}
	return list, err
}

type inboxDesk struct{ *inboxoperator.Operator }

func (d inboxDesk) who() string { return "a worker that has the effect applies" }

func (d inboxDesk) overtaken(err error) bool {
	return errors.Is(err, inboxoperator.ErrNotParked) || errors.Is(err, inboxoperator.ErrReleasing)
}

func (d inboxDesk) discardEvent(ctx context.Context, id int64, reason string) (operator.DiscardResult, error) {
	gone, err := d.DiscardEvent(ctx, id, reason)
	return operator.DiscardResult{Events: gone.Events}, err
}

func (d inboxDesk) discardKey(ctx context.Context, k ofKey, reason string) (operator.DiscardResult, error) {
	gone, err := d.DiscardKey(ctx, k.Tenant, k.Topic, k.Key, reason)
	return operator.DiscardResult{Events: gone.Events}, err
}

func (d inboxDesk) keys(ctx context.Context, topic, code string, limit int) (list []deskKey, err error) {
	found, err := d.BlockedKeys(ctx, inboxoperator.BlockedFilter{Topic: topic, Code: code, Limit: limit})
	for _, k := range found {
		list = append(list, deskKey{ofKey{k.Tenant, k.Topic, k.Key}, k.Releasing})
	}
	return list, err
}

func (d inboxDesk) events(ctx context.Context, of ofKey, code string, after int64, limit int) (list []deskEvent, err error) {
	found, err := d.Parked(ctx, inboxoperator.ParkedFilter{Tenant: tenantOf(of), Topic: of.Topic, Key: of.Key, Code: code, After: after, Limit: limit})
	for _, e := range found {
		list = append(list, deskEvent{id: e.ID, messageID: e.MessageID, alone: e.Alone, releasing: e.Releasing, quarantined: e.Kind == "quarantined"})
	}
	return list, err
}
