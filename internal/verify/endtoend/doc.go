// Package endtoend holds the tests of the whole chain, with real processes that are killed at named steps.
package endtoend
