//go:build !unix

package child

import "os"

// Without file locks a second lock of the same file fails, so nothing is swept and nothing of a living test is removed.
func lock(path string) (unlock func(), ok bool) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false
	}
	return func() { _ = f.Close() }, true
}

func guard() (leave func()) { return func() {} }
