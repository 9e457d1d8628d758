// Package fake is a verbs layer in memory, for tests: devices whose queue pairs move bytes inside the process, and
// that fail as real ones do, on demand.
//
// A [Fabric] is the network. [Fabric.Machine] makes one machine's devices, a device.Provider. Failures:
//
//   - OnWork: any piece of work ends with any status, or not at all until its queue pair fails ([Device.OnWork], [Hang]);
//   - mixed MTU: two queue pairs with different path MTUs, or a port that is smaller than the path, move nothing and end with
//     "transport retries exceeded", as in a real network;
//   - limits: max_mr_size, the number of queue pairs and regions, the depth of queues (an overrun completion queue is lost);
//   - ports that go down and come up ([Device.SetPort]), GID tables that change ([Device.SetGIDs]);
//   - devices that die with an asynchronous event ([Device.Die]) and come back ([Machine.Revive]).
//
// Open objects are counted ([Device.Counts]), so that tests find leaks, also of closing in the wrong order.
package fake
