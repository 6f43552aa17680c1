//go:build failpoints

package failpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRules(t *testing.T) {
	t.Parallel()
	s, err := newSet("relay/settled=error@2*2;inbox/committed=error*;publisher/*=error;relay/claim=delay(1ms)", "")
	if err != nil {
		t.Fatal(err)
	}
	fails := func(name Name) (n []int) {
		for i := 1; i <= 5; i++ {
			if err := s.reach(name); err != nil {
				n = append(n, i)
				if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, ErrInjected) {
					t.Errorf("%s: %v does not look like the end of a connection", name, err)
				}
			}
		}
		return n
	}
	for name, want := range map[Name]string{
		RelaySettled: "[2 3]", InboxCommitted: "[1 2 3 4 5]", PublisherAcked: "[1]", PublisherSend: "[]", RelayClaim: "[]", RelayPark: "[]",
	} {
		if got := fmt.Sprint(fails(name)); got != want {
			t.Errorf("%s fails at %s, want %s", name, got, want)
		}
		if s.hits[name] != 5 {
			t.Errorf("%s counts %d hits, want 5", name, s.hits[name])
		}
	}
}

// TestChance: the same seed draws the same.
func TestChance(t *testing.T) {
	t.Parallel()
	draw := func(seed string) string {
		s, err := newSet("relay/settled=error*%0.3", seed)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for range 200 {
			if s.reach(RelaySettled) != nil {
				b.WriteByte('x')
			} else {
				b.WriteByte('.')
			}
		}
		return b.String()
	}
	one := draw("7")
	if n := strings.Count(one, "x"); one != draw("7") || one == draw("8") || n < 30 || n > 90 {
		t.Errorf("seed 7 draws %d of 200: %s", n, one)
	}
	if _, err := newSet("", "seven"); err == nil {
		t.Error("a seed that is no number is taken")
	}
}

// TestLog: what a process did at its points outlives it.
func TestLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	s, err := newSet("relay/settled=error@2", "")
	if err != nil {
		t.Fatal(err)
	}
	if s.log, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_ = s.reach(RelaySettled)
	}
	_ = s.log.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Fields(string(b)); len(lines) != 6 || lines[1] != "reached" || lines[4] != "error" || lines[5] != string(RelaySettled) {
		t.Errorf("the log is %q", b)
	}
}

// TestPause: the whole process stands still and goes on by itself.
func TestPause(t *testing.T) {
	s, err := newSet("relay/settled=pause(300ms)", "")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.reach(RelaySettled); err != nil || time.Since(began) < 200*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
