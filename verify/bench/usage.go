package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is the CPU seconds of the servers, which other load on the machine affects less than a rate.
type usage struct{ postgres, kafka float64 }

func (u usage) minus(before usage) usage {
	return usage{u.postgres - before.postgres, u.kafka - before.kafka}
}

// serverCPU sums over this process's children; it is zero without /proc, and for a broker that another process started.
func serverCPU() usage { return serverCPUOf(os.Getpid()) }

// serverCPUOf is serverCPU for another process.
func serverCPUOf(parent int) (u usage) {
	for _, pid := range children(parent) {
		cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		switch {
		case bytes.Contains(cmdline, []byte("kafka.Kafka")):
			self, _ := cpuOf(pid)
			u.kafka += self
		case strings.HasPrefix(filepath.Base(string(bytes.SplitN(cmdline, []byte{0}, 2)[0])), "postgres"):
			u.postgres += withBackends(pid)
		}
	}
	return u
}

// withBackends returns a postmaster's CPU with its backends. It reads again if a backend started or exited meanwhile,
// because one that was reaped in between would be missing.
func withBackends(postmaster int) (sum float64) {
	for range 10 {
		backends := children(postmaster)
		self, reaped := cpuOf(postmaster)
		sum = self + reaped
		for _, backend := range backends {
			self, _ := cpuOf(backend)
			sum += self
		}
		if slices.Equal(backends, children(postmaster)) {
			break
		}
	}
	return sum
}

func children(pid int) (out []int) {
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// cpuOf reads a process's own seconds and those of its children that have ended.
func cpuOf(pid int) (self, reaped float64) {
	const ticks = 100 // a second, on every Linux that Go runs on
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return 0, 0
	}
	sum := func(from int) (n float64) {
		for _, f := range fields[from : from+2] {
			v, _ := strconv.ParseFloat(f, 64)
			n += v / ticks
		}
		return n
	}
	return sum(11), sum(13)
}

// selfCPU returns the CPU seconds of this process so far.
func selfCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// allocations returns how many objects this process has allocated so far.
func allocations() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs)
}

// peakOf returns the peak resident size of a process; pid may be "self".
func peakOf(pid string) (kib int64) {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return kib
}
