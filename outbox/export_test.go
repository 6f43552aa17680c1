package outbox

// Queries is all SQL of the room, for a test against the migrated schema.
var Queries = map[string]string{"append one": queryAppendOne, "append many": queryAppendMany, "lock keys": queryLockKeys}

// Reserve lets a test compare what the size check assumes with what the codec writes.
const (
	MaxRecord      = maxRecord
	RecordOverhead = recordOverhead
)

// CopyFrom is where Append changes to COPY.
const CopyFrom = copyFrom
