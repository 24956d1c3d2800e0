package cluster

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// asProgram is the variable that makes this test binary be a program that
// uses the shared cluster and then ends in the way that the variable names.
const asProgram = "PG_RATELIMIT_CLUSTER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	way := os.Getenv(asProgram)
	if way == "" {
		os.Exit(m.Run())
	}
	c, err := shared()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.run.pid(), c.Dir(), c.SocketDir())
	switch way {
	case "return":
	case "panic":
		panic("as the test asked")
	case "pause":
		if err := c.Pause(); err != nil {
			panic(err)
		}
		fmt.Println("paused")
	}
	if way != "return" {
		select {} // until SIGKILL
	}
}

func TestTheSharedClusterGoesWithItsProcess(t *testing.T) {
	for _, way := range []string{"return", "panic", "kill", "pause"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			program := exec.Command(self)
			program.Env = append(os.Environ(), asProgram+"="+way)
			stdout, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(stdout)
			var pid int
			var dir, sockets string
			if _, err := fmt.Fscanln(out, &pid, &dir, &sockets); err != nil {
				t.Fatal(err)
			}
			children, err := descendants(pid)
			if err != nil {
				t.Fatal(err)
			}
			if way == "pause" {
				if said, err := out.ReadString('\n'); err != nil || said != "paused\n" {
					t.Fatalf("the program says %q, %v", said, err)
				}
			}
			if way == "kill" || way == "pause" {
				if err := program.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := program.Wait(); (err == nil) != (way == "return") {
				t.Fatalf("the program ended with %v", err)
			}
			if err := awaitGone(patience, append(children, pid)); err != nil {
				t.Error(err)
			}
			if err := poll(patience, "the folders to go", func(map[int]process) bool { return !exists(dir) && !exists(sockets) }); err != nil {
				t.Error(err)
			}
		})
	}
}
