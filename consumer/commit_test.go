package consumer

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// An offset that was decided during a failing commit is sent with the next commit.
func TestCommitAfterFailedCommit(t *testing.T) {
	t.Parallel()
	a, b := &partition{Partition: Partition{"t", 0}}, &partition{Partition: Partition{"t", 1}}
	sent := map[int]int64{}
	c := &committer{every: time.Hour, observer: &Observer{}}
	c.send = func(batch map[string]map[int]int64) error {
		if len(sent) == 0 {
			sent[-1] = -1
			c.decided(a, 7)
			return errors.New("the broker is away")
		}
		maps.Copy(sent, batch["t"])
		return nil
	}
	c.decided(a, 5)
	c.decided(b, 3)
	if err := c.flushLast(); err != nil || sent[0] != 7 || sent[1] != 3 {
		t.Errorf("committed %v, want 7 and 3: %v", sent, err)
	}
}

// A commit that the broker refuses as of an old generation ends the generation in this member.
func TestRefusedCommitEndsGeneration(t *testing.T) {
	t.Parallel()
	for _, refused := range []error{kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.FencedInstanceID} {
		var told error
		c := &committer{every: time.Hour, observer: &Observer{}, fenced: func(err error) { told = err }}
		c.send = func(map[string]map[int]int64) error { return refused }
		c.decided(&partition{Partition: Partition{"t", 0}}, 5)
		if err := c.flush(); !errors.Is(err, refused) || !errors.Is(told, refused) {
			t.Errorf("%v: fenced was called with %v", refused, told)
		}
	}
}
