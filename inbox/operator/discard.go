package operator

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// DiscardEvent discards a parked event for good. Its id stays in the inbox as discarded, so that a repeat is a
// duplicate, and the audit keeps its record. If the event is the first of a key's list, the next release starts with
// the event behind it; if there is none, the key is unblocked at once. It fails with admin.ErrNotParked.
func (o *Operator) DiscardEvent(ctx context.Context, id int64, reason string) (d admin.DiscardResult, err error) {
	err = o.discarding(ctx, audit.DiscardEvent, reason, func(c change) error {
		e, err := c.locked(ctx, id)
		if err != nil {
			return err
		}
		d = admin.DiscardResult{Events: 1}
		return c.discard(ctx, e.Consumer, e.hash, []discardID{{e.ID, e.MessageID, e.Code}})
	})
	return d, err
}

// SkipHead is DiscardEvent for the first event of a key's list, and, unless keep is set, ReleaseKey for the events
// behind it, in one transaction. Unless seen names its head, it refuses one that has not failed. It fails with
// admin.ErrNotParked, admin.ErrReleasing and admin.ErrAnotherList.
func (o *Operator) SkipHead(ctx context.Context, tenant, topic, key string, seen admin.Seen, keep bool,
	reason string,
) (s admin.SkipResult, err error) {
	err = o.discarding(ctx, audit.DiscardEvent, reason, func(c change) error {
		hash, list, err := c.lockKey(ctx, tenant, topic, key, seen)
		if err != nil {
			return err
		}
		e, err := c.locked(ctx, list.Head)
		if err == nil {
			err = list.CheckHead(e.Parked, seen)
		}
		if err == nil {
			err = c.discard(ctx, o.consumer, hash, []discardID{{e.ID, e.MessageID, e.Code}})
		}
		s = admin.SkipResult{ID: e.ID, MessageID: e.MessageID}
		if err != nil || keep || list.Events == 1 {
			return err
		}
		s.Released = list.Events - 1
		return c.release(ctx, tenant, topic, key, hash, s.Released)
	})
	return s, err
}

// DiscardKey discards the whole list of a parked key for good. Later events of the key are applied again. It fails with
// admin.ErrNotParked and admin.ErrAnotherList.
func (o *Operator) DiscardKey(ctx context.Context, tenant, topic, key string, seen admin.Seen, reason string) (
	d admin.DiscardResult, err error,
) {
	err = o.discarding(ctx, audit.DiscardKey, reason, func(c change) error {
		hash, _, err := c.lockKey(ctx, tenant, topic, key, seen)
		if err != nil {
			return err
		}
		rows, err := c.tx.Query(ctx, o.q(sql.ListIDs), o.consumer, hash)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d discardID, err error) {
			var id string
			if err = row.Scan(&d.row, &id, &d.code); err == nil {
				d.id, err = uuid.Parse(id)
			}
			return d, err
		})
		if err != nil {
			return err
		}
		d = admin.DiscardResult{Events: int64(len(list))}
		if err := c.audit(ctx, tenant, topic, key, map[string]any{"events": len(list)}); err != nil {
			return err
		}
		return c.discard(ctx, o.consumer, hash, list)
	})
	return d, err
}

// discardID is an event to discard.
type discardID struct {
	row  int64
	id   uuid.UUID
	code string
}

// missingDays is the error for discarded ids of which at least one lacks its day partition. days are the days of all.
type missingDays struct {
	days []days.Number
	error
}

// discarding is act. It also creates missing days for the ids, if the role may.
func (o *Operator) discarding(ctx context.Context, action, reason string, do func(c change) error) error {
	err := o.act(ctx, action, reason, do)
	missing, ok := errors.AsType[*missingDays](err)
	if !ok {
		return err
	}
	k := days.Keeper{DB: o.db, Prefix: o.prefix, LockTimeout: audit.Timeout, Log: slog.New(slog.DiscardHandler)}
	for _, d := range missing.days {
		if err := k.MakeDay(ctx, d); err != nil {
			return err
		}
	}
	return o.act(ctx, action, reason, do)
}

// discard records the ids, copies the records to the audit, and removes the events from their list.
func (c change) discard(ctx context.Context, consumer string, hash []byte, list []discardID) error {
	var state days.State
	if err := state.Read(c.query(ctx, sql.State, "", "", consumer, "", nil)); err != nil {
		return err
	}
	var rows []int64
	var own []days.Number
	ids, codes := map[string][]string{}, map[string][]string{} // by statement
	for _, d := range list {
		into := sql.DiscardAny
		if state.Released(d.id) {
			into = sql.DiscardDay
			day, _ := days.Of(d.id)
			own = append(own, day)
		}
		rows = append(rows, d.row)
		ids[into], codes[into] = append(ids[into], d.id.String()), append(codes[into], d.code)
	}
	if err := c.auditRecords(ctx, map[string]any{}, true, rows...); err != nil {
		return err
	}
	for _, into := range []string{sql.DiscardDay, sql.DiscardAny} {
		if len(ids[into]) == 0 {
			continue
		}
		_, err := c.exec(ctx, into, consumer, ids[into], codes[into])
		if pgerr.Is(err, pgerr.CheckViolation) {
			slices.Sort(own)
			return &missingDays{slices.Compact(own), err}
		}
		if err != nil {
			return err
		}
	}
	if _, err := c.exec(ctx, sql.LeaveAll, rows); err != nil || hash == nil {
		return err
	}
	_, err := c.exec(ctx, sql.Unmark, consumer, hash)
	return err
}
