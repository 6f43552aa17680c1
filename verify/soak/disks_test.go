package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// disks are two file systems in memory, with a server's data and its WAL.
type disks struct{ data, wal string }

func (d *disks) of(name string) string {
	if name == "wal" {
		return d.wal
	}
	return d.data
}

// sizes are upper limits; free space takes no memory.
var sizes = map[string]string{"data": "6g", "wal": "2g"}

// full shrinks a disk to its used size.
func (d *disks) full(name string) (err error) {
	for range 20 { // files may grow between the two calls
		var at syscall.Statfs_t
		if err := syscall.Statfs(d.of(name), &at); err != nil {
			return err
		}
		used := (at.Blocks - at.Bfree) * uint64(at.Bsize)
		if err = run("mount", "-o", fmt.Sprintf("remount,size=%d", used+256<<10), d.of(name)); err == nil {
			return nil
		}
	}
	return err
}

func (d *disks) restoreSize(name string) error {
	return run("mount", "-o", "remount,size="+sizes[name], d.of(name))
}

// device is the name of these file systems in the list of mounts.
const device = "effectonce-soak"

// sweep unmounts the file systems of killed runs, whose lock file is no longer locked.
func sweep() {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		part := strings.Fields(line)
		if len(part) < 2 || part[0] != device {
			continue
		}
		lock, err := os.Open(filepath.Dir(part[1]) + ".lock")
		if err == nil {
			err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			_ = lock.Close()
		}
		if err == nil || os.IsNotExist(err) {
			_ = run("umount", "-l", part[1])
		}
	}
}

// newDisks moves a server to new disks. It needs the right to mount; without it, no disk fills up in the run.
func newDisks(t *testing.T, server *pgtest.Server) (*disks, error) {
	t.Helper()
	d := &disks{data: filepath.Join(server.Dir(), "disk"), wal: filepath.Join(server.Dir(), "wal")}
	sweep()
	server.StopFast()
	err := d.mount(t)
	if err == nil {
		err = d.move(filepath.Join(server.Dir(), "data"))
	}
	server.Start(t)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (d *disks) mount(t *testing.T) error {
	for name, size := range sizes {
		dir := d.of(name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := run("mount", "-t", "tmpfs", "-o", "size="+size+",mode=0700", device, dir); err != nil {
			return err
		}
		t.Cleanup(func() {
			if err := run("umount", "-l", dir); err != nil {
				t.Errorf("cannot unmount: %v", err)
			}
		})
	}
	return nil
}

// move copies the data with its owner, and leaves symbolic links. If it fails, the server's directory is unchanged.
func (d *disks) move(data string) error {
	for _, step := range [][]string{
		{"cp", "-a", data + "/.", d.data},
		{"cp", "-a", data + "/pg_wal/.", d.wal},
		{"chown", "--reference=" + data, d.data, d.wal},
		{"rm", "-r", d.data + "/pg_wal"},
		{"ln", "-s", d.wal, d.data + "/pg_wal"},
		{"chown", "-h", "--reference=" + data, d.data + "/pg_wal"},
		{"mv", data, data + ".before"},
		{"ln", "-s", d.data, data},
		{"rm", "-r", data + ".before"},
	} {
		if err := run(step...); err != nil {
			return err
		}
	}
	return nil
}

func run(command ...string) error {
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", command, err, out)
	}
	return nil
}
