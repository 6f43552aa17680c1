package inbox

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	queries := pgtest.Queries(t, "queries*.go", "internal/*/queries*.go")
	for name, sql := range queries {
		queries[name] = strings.ReplaceAll(sql, "{table}", "inbox_message_20260101")
	}
	pgtest.PrepareAll(t, pgtest.New(t, "inbox"), queries)
}

// dayBound returns the lowest UUID of a day.
func dayBound(d days.Number) string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(d)*24*60*60*1000<<16)
	return id.String()
}

func TestDayOfAnID(t *testing.T) {
	t.Parallel()
	for d, want := range map[days.Number][2]string{
		0:     {"19700101", "00000000-0000-0000-0000-000000000000"},
		20454: {"20260101", "019b76da-a800-0000-0000-000000000000"},
	} {
		if days.Name(d) != want[0] || dayBound(d) != want[1] {
			t.Errorf("day %d is %s from %s, want %v", d, days.Name(d), dayBound(d), want)
		}
		id := uuid.MustParse(dayBound(d))
		id[6], id[8] = 0x70, 0x80
		if got, ok := days.Of(id); !ok || got != d {
			t.Errorf("%s is of day %d (%v), want %d", id, got, ok, d)
		}
	}
	for _, id := range []uuid.UUID{uuid.New(), uuid.NewSHA1(uuid.Nil, nil), uuid.Max, uuid.Nil} {
		if _, ok := days.Of(id); ok {
			t.Errorf("%s has a day, want none", id)
		}
	}
}

func TestP9_1_Place(t *testing.T) {
	t.Parallel()
	at := func(d days.Number) uuid.UUID {
		id := uuid.MustParse(dayBound(d))
		id[6], id[8] = 0x70, 0x80
		return id
	}
	for name, c := range map[string]struct {
		day            days.Number
		dropped, floor days.Number
		want           route
	}{
		"today":                            {100, 0, 50, inDay},
		"first of the window":              {86, 0, 50, inDay},
		"before the window":                {85, 0, 50, tooOld},
		"dropped inside the window":        {90, 91, 50, tooOld},
		"first that is not dropped":        {91, 91, 50, inDay},
		"last ahead":                       {107, 0, 50, inDay},
		"beyond":                           {108, 0, 50, tooFuture},
		"history":                          {3, 0, 95, inAny},
		"history, floor about to go":       {3, 95, 95, inAny},
		"history, floor gone":              {3, 96, 95, tooOld},
		"the floor itself":                 {95, 95, 95, inDay},
		"the day before it, in the window": {94, 0, 95, inAny},
	} {
		s := state{days.State{Today: 100, Dropped: c.dropped, Floor: c.floor, Until: -1}}
		if got := s.route(at(c.day), 14, 7); got != c.want {
			t.Errorf("%s: route %d, want %d", name, got, c.want)
		}
		if s.Until = 90; c.want == tooOld && c.day >= max(c.dropped, c.floor) && s.route(at(c.day), 14, 7) != inDay {
			t.Errorf("%s: too old by a clock that is believed only up to day 90", name)
		}
		if got := s.route(uuid.New(), 14, 7); got != inAny {
			t.Errorf("%s: a foreign id goes to %d", name, got)
		}
	}
}
