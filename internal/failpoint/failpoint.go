// Package failpoint names the steps at which a process may die, stand still or meet a fault, so that tests can make
// each of them happen.
//
// Without the build tag failpoints every call is an inlined function that does nothing: the names are not even in the
// binary. With it, a process reads [EnvSettings] once, when it starts:
//
//	EFFECTONCE_FAILPOINTS="relay/claim-committed=kill@3;consumer/offset-commit=delay(200ms)*5"
//
// A setting is point=action, and then, in this order and each optional:
//
//	@3    from the third time on that the process reaches the point; the first without it
//	*5    five times; once without it, and every time with * alone
//	%0.01 with that probability each time, by the numbers that EnvSeed begins; always without it
//
// Actions: kill (SIGKILL of itself, as kill -9 does), pause(2s) (the whole process stands still, as SIGSTOP and SIGCONT
// do; the kernel then makes it go on), delay(2s) (this goroutine waits), error (the step fails, through the way that a
// real fault of it takes; only points with an error path have it). A point that ends in * means every one that begins
// so and that can do the action. A setting that cannot be read, or names no point, ends the process with a sentence.
package failpoint

// The environment of a process with failpoints.
const (
	// EnvSettings holds the settings; empty: nothing happens anywhere.
	EnvSettings = "EFFECTONCE_FAILPOINTS"
	// EnvSeed begins the random numbers that % draws; a number, 1 by default.
	EnvSeed = "EFFECTONCE_FAILPOINTS_SEED"
	// EnvLog names a file that gets a line "pid reached point" the first time the process is at a point, and a line
	// "pid action point" before each action: they outlive the process. Empty: no file.
	EnvLog = "EFFECTONCE_FAILPOINTS_LOG"
)

// Name is the name of a point: the room, a slash, the step.
type Name string

// Point says what a point is.
type Point struct {
	Name Name
	// When is the moment, as a sentence without its subject: "the claim is committed and nothing is sent".
	When string
	// Errs tells whether the point has an error path.
	Errs bool
}
