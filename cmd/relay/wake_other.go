//go:build !unix

package main

import "context"

// wakeOnSignal does nothing here: there is no signal for it.
func wakeOnSignal(context.Context, func()) {}
