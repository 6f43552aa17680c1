package reads

// How many reads all databases together may have under way: hundreds are not asked at the same moment.
const (
	mostLooks        = 8
	mostExaminations = 4
)

// Limits bound the reads of all databases.
type Limits struct{ Looks, examinations chan struct{} }

// NewLimits returns the limits of a process.
func NewLimits() Limits {
	return Limits{make(chan struct{}, mostLooks), make(chan struct{}, mostExaminations)}
}
