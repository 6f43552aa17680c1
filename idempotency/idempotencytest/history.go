package idempotencytest

// histories are the exams by random histories.
func histories() []exam { return nil }
