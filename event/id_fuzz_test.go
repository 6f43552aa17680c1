package event_test

import (
	"crypto/md5"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// TestP9_9_ForeignIDsStayApart: a foreign id is a UUID only when all of it is. Two ids that differ in what stands
// around one are two events, and neither is the other's duplicate.
func TestP9_9_ForeignIDsStayApart(t *testing.T) {
	t.Parallel()
	u := uuid.MustParse("0199a4c2-7d1c-7000-8000-0000000000ab")
	for _, same := range []string{u.String(), strings.ToUpper(u.String()), "{" + u.String() + "}", "urn:uuid:" +
		u.String()} {
		if got := event.ForeignID("s", same); got != u {
			t.Errorf("%q: %s, want %s", same, got, u)
		}
	}
	seen := map[uuid.UUID]string{u: u.String()}
	for _, other := range []string{
		"1" + u.String() + "1", "1" + u.String() + "2", "{" + u.String() + "1",
		"2" + u.String() + "}", u.String() + "-1", "x" + u.String(),
	} {
		got := event.ForeignID("s", other)
		if first, twice := seen[got]; twice {
			t.Errorf("%q and %q are one id", first, other)
		}
		seen[got] = other
	}
}

// FuzzIDs: what makes an id of foreign text never fails, gives one text always the same id and two texts two, and keeps
// an effect's events in the day of their cause.
func FuzzIDs(f *testing.F) {
	const u = "0199a4c2-7d1c-7000-8000-0000000000ab"
	f.Add("s", u, "1"+u+"1", int64(0))
	f.Add("s", "1"+u+"1", "1"+u+"2", int64(-1))
	f.Add("", "", "00000000-0000-0000-0000-000000000000", int64(1)<<48)
	f.Add("a", "{"+u+"}", "urn:uuid:"+u, int64(1)<<62)
	f.Fuzz(func(t *testing.T, source, a, b string, millis int64) {
		x, y := event.ForeignID(source, a), event.ForeignID(source, b)
		if x == uuid.Nil || x == uuid.Max || x != event.ForeignID(source, a) {
			t.Fatalf("%q: %s", a, x)
		}
		if x == y && plain(a) != plain(b) {
			t.Fatalf("%q and %q are one id", a, b)
		}
		cause := event.Event{ID: event.ForeignID(source, a), Time: time.UnixMilli(millis)}
		first, second := event.Derive(cause, a, event.Event{}), event.Derive(cause, b, event.Event{})
		if first.ID.Version() != 7 || (first.ID == second.ID) != (a == b) {
			t.Fatalf("derived %s and %s of %q and %q", first.ID, second.ID, a, b)
		}
		at, ok := event.IDTime(first.ID)
		if was, v7 := event.IDTime(cause.ID); !ok || v7 && !at.Equal(was) {
			t.Fatalf("derived in %v, the cause is of %v", at, was)
		}
	})
}

// plain is what the spellings of one UUID have in common.
func plain(id string) string {
	s := strings.ToLower(id)
	switch {
	case len(s) == 38 && s[0] == '{' && s[37] == '}':
		s = s[1:37]
	case len(s) == 45 && strings.HasPrefix(s, "urn:uuid:"):
		s = s[9:]
	}
	if u, err := uuid.Parse(s); err == nil && (len(s) == 36 || len(s) == 32 && u.Version() != 7) {
		return u.String()
	}
	return id
}

// TestP9_9_TokensHaveNoTime: of random tokens and hashes in hexadecimal digits none is taken for the UUIDv7 of a random
// day, which an inbox would refuse to decide.
func TestP9_9_TokensHaveNoTime(t *testing.T) {
	t.Parallel()
	for i := range 1000 {
		token := fmt.Sprintf("%x", md5.Sum([]byte{byte(i), byte(i >> 8)}))
		if at, ok := event.IDTime(event.ForeignID("s", token)); ok {
			t.Fatalf("%s is an id of %v", token, at)
		}
	}
	v4 := uuid.New()
	if got := event.ForeignID("s", strings.ReplaceAll(v4.String(), "-", "")); got != v4 {
		t.Errorf("%s without hyphens is %s", v4, got)
	}
}
