#!/bin/bash
# Runs a command in a throw-away virtual machine that has soft-RoCE devices.
#
#   rxe-vm.sh [-m MEBIBYTES] [-t SECONDS] [-n DEVICES] [-o FOLDER] -- COMMAND...
#
# There is no disk image. The machine sees this host's files read-only, with a layer in memory for what it writes, and
# starts in the folder in which this was called. Inside are the devices rxe0, rxe1, ... on the network devices d0, d1, ...
# (192.0.2.1/24, 198.51.100.1/24, MTU 9000), each of which reaches itself only, loopback, and no other network. What the
# command leaves in /out is in FOLDER at once. The exit status is the command's, 124 when it took more than SECONDS, 3
# when this host cannot run the machine. The processors are emulated, 5 to 20 times slower than the host's: hosts that
# are virtual themselves often have a /dev/kvm that does not work.
#
# RXE_VM_CPUS (default: the host's, at most 4) and RXE_VM_ACCEL (such as kvm) change the machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
memory=4096 seconds=600 devices=1 out=
while getopts m:t:n:o: o; do
	case $o in
	m) memory=$OPTARG ;;
	t) seconds=$OPTARG ;;
	n) devices=$OPTARG ;;
	o) out=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || {
	sed -n '2,15s/^# \{0,1\}//p' "$0"
	exit 2
}

"$here/setup-rdma.sh"
cache=${MOONCAKE_CACHE:-${here%/*}/.cache}/rxe-vm

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
out=${out:-$scratch}
mkdir -p "$out"
out=$(cd "$out" && pwd)

rm -f "$out/.status"
echo "$devices" >"$out/.devices"
{
	printf 'cd %q\n' "$PWD"
	printf 'export PATH=%q HOME=%q MOONCAKE_CACHE=%q\n' "$PATH:/usr/sbin:/sbin" "$HOME" "${cache%/*}"
	for v in CI GOFLAGS "${!MC_@}" "${!MOONCAKE_@}"; do [ -z "${!v-}" ] || printf 'export %s=%q\n' "$v" "${!v}"; done
	# The console is a terminal, for which programs would draw.
	echo 'set -o pipefail'
	printf '%q ' "$@"
	echo '</dev/null 2>&1 | cat'
} >"$out/.command"

cpus=${RXE_VM_CPUS:-$(nproc)}
[ -n "${RXE_VM_CPUS:-}" ] || [ "$cpus" -le 4 ] || cpus=4
accel=${RXE_VM_ACCEL:-tcg,thread=multi}

# A comma in a value of QEMU's is written twice.
timeout "$seconds" qemu-system-x86_64 -accel "$accel" -cpu max -m "$memory" -smp "$cpus" \
	-kernel "$cache/vmlinuz" -initrd "$cache/initrd.gz" \
	-append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off" \
	-nodefaults -no-reboot -display none -serial stdio -net none \
	-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
	-virtfs "local,path=${out//,/,,},mount_tag=out,security_model=none" </dev/null | sed -u 's/\r//g' || true

[ -f "$out/.status" ] || {
	echo "rxe-vm: the machine did not end by itself within $seconds s" >&2
	exit 124
}
status=$(cat "$out/.status")
rm -f "$out/.status" "$out/.command" "$out/.devices"
exit "$status"
