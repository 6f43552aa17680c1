package inbox

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	queries := map[string]string{
		"begin": sqlBegin, "state": sqlState, "insertDay": sqlInsertDay, "insertAny": sqlInsertAny, "adopt": sqlAdopt, "commit": sqlCommit,
		"barrier": sqlBarrier, "home": sqlHome, "rollback": sqlRollback, "register": sqlRegister, "present": sqlPresent, "days": sqlDays, "lockDays": sqlLockDays, "makeDay": sqlMakeDay, "dropDayFor": sqlDropDayFor,
		"raise": sqlRaise, "believe": sqlBelieve, "detachDay": sqlDetachDay, "finalizeDay": sqlFinalizeDay, "dropLock": sqlDropLock, "dropDay": sqlDropDay,
		"parked": sqlParked, "blockedKeys": sqlBlockedKeys, "lockListed": sqlLockListed, "releaseKey": sqlReleaseKey,
		"resetReleases": sqlResetReleases, "listLength": sqlListLength, "listIDs": sqlListIDs, "releaseEvent": sqlReleaseEvent,
		"edit": sqlEdit, "discardDay": sqlDiscardDay, "discardAny": sqlDiscardAny, "leaveAll": sqlLeaveAll,
		"auditRecords": sqlAuditRecords, "audit": sqlAudit, "auditLog": sqlAuditLog, "resume": sqlResume, "attentive": sqlAttentive,
		"lockConsumer": sqlLockConsumer, "retire": sqlRetire, "skipTo": sqlSkipTo, "consumerList": sqlConsumerList, "progressList": sqlProgressList,
		"open": sqlOpen, "openIDs": sqlOpenIDs, "marks": sqlMarks, "mark": sqlMark, "park": sqlPark, "quarantine": sqlQuarantine,
		"forgetDay": sqlForgetDay, "forgetAny": sqlForgetAny, "progress": sqlProgress, "range": sqlRange, "closeRange": sqlCloseRange, "pass": sqlPass, "account": sqlAccount,
		"count": sqlCount, "uncount": sqlUncount, "halted": sqlHalted, "resumed": sqlResumed, "releasing": sqlReleasing,
		"freeMark": sqlFreeMark, "freeAlone": sqlFreeAlone, "lockMark": sqlLockMark, "lockAlone": sqlLockAlone, "head": sqlHead, "countRelease": sqlCountRelease,
		"uncountRelease": sqlUncountRelease, "leave": sqlLeave, "unmark": sqlUnmark, "parkAgain": sqlParkAgain,
		"failedAgain": sqlFailedAgain, "bound": sqlBound, "unhalt": sqlUnhalt,
		"consumers": sqlConsumers, "cleanAny": sqlCleanAny, "lockClean": sqlLockClean,
		"marksOf": sqlMarksOf, "accepted": sqlAccepted, "firstMet": sqlFirstMet, "moveMark": sqlMoveMark, "firstMark": sqlFirstMark, "knownIDs": sqlKnownIDs,
		"judged": sqlJudged, "accept": sqlAccept, "acceptResumes": sqlAcceptResumes, "lockConsumers": sqlLockConsumers, "moveConsumer": sqlMoveConsumer,
		"forgetOffsets": sqlForgetOffsets,
		"sampleParked":  sqlSampleParked, "sampleKeys": sqlSampleKeys, "sampleHalted": sqlSampleHalted, "sampleDays": sqlSampleDays,
	}
	fill := strings.NewReplacer("{table}", "inbox_message_20260101")
	for name, sql := range queries {
		queries[name] = fill.Replace(sql)
	}
	pgtest.PrepareAll(t, pgtest.New(t, "inbox"), queries)
}

// dayBound is the lowest uuid of the day.
func dayBound(d dayNumber) string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(d)*dayMillis<<16)
	return id.String()
}

func TestDayOfAnID(t *testing.T) {
	t.Parallel()
	for d, want := range map[dayNumber][2]string{
		0:     {"19700101", "00000000-0000-0000-0000-000000000000"},
		20454: {"20260101", "019b76da-a800-0000-0000-000000000000"},
	} {
		if dayName(d) != want[0] || dayBound(d) != want[1] {
			t.Errorf("day %d is %s from %s, want %v", d, dayName(d), dayBound(d), want)
		}
		id := uuid.MustParse(dayBound(d))
		id[6], id[8] = 0x70, 0x80
		if got, ok := idDay(id); !ok || got != d {
			t.Errorf("%s is of day %d (%v), want %d", id, got, ok, d)
		}
	}
	for _, id := range []uuid.UUID{uuid.New(), uuid.NewSHA1(uuid.Nil, nil), uuid.Max, uuid.Nil} {
		if _, ok := idDay(id); ok {
			t.Errorf("%s has a day", id)
		}
	}
}

func TestP9_1_Place(t *testing.T) {
	t.Parallel()
	at := func(d dayNumber) uuid.UUID {
		id := uuid.MustParse(dayBound(d))
		id[6], id[8] = 0x70, 0x80
		return id
	}
	for name, c := range map[string]struct {
		day            dayNumber
		dropped, floor dayNumber
		want           place
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
		s := state{today: 100, dropped: c.dropped, floor: c.floor, until: -1}
		if got := s.place(at(c.day), 14, 7); got != c.want {
			t.Errorf("%s: place %d, want %d", name, got, c.want)
		}
		if s.until = 90; c.want == tooOld && c.day >= max(c.dropped, c.floor) && s.place(at(c.day), 14, 7) != inDay {
			t.Errorf("%s: too old by a clock that is not believed beyond day 90", name)
		}
		if got := s.place(uuid.New(), 14, 7); got != inAny {
			t.Errorf("%s: a foreign id goes to %d", name, got)
		}
	}
}
