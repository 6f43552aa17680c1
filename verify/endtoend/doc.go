// Package endtoend tests the whole chain, with processes that are killed at named steps.
package endtoend
