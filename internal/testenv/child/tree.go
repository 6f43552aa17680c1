package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Tree has processes, and when each began: a number is given again once its process has ended.
type Tree map[int]string

// Below returns the processes below one; none where there is no /proc.
func Below(pid int) Tree {
	paths, _ := filepath.Glob("/proc/[0-9]*")
	children, began := map[int][]int{}, map[int]string{}
	for _, path := range paths {
		id, _ := strconv.Atoi(filepath.Base(path))
		if s, is := statOf(id); is {
			children[s.parent], began[id] = append(children[s.parent], id), s.began
		}
	}
	all := Tree{}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, child := range children[next[0]] {
			all[child], next = began[child], append(next, child)
		}
	}
	return all
}

// Left describes the processes that have not ended.
func (t Tree) Left() (left []string) {
	for pid, began := range t {
		if s, is := statOf(pid); is && s.began == began {
			left = append(left, fmt.Sprintf("process %d is left, in state %s", pid, s.state))
		}
	}
	return left
}

// stat is what /proc tells of a process.
type stat struct {
	parent int
	state  string
	began  string // ticks since the boot
}

func statOf(pid int) (s stat, is bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, false // ended meanwhile
	}
	// The name is in parentheses and may contain any character.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	s.state, s.began = fields[0], fields[19]
	_, _ = fmt.Sscan(fields[1], &s.parent)
	return s, true
}
