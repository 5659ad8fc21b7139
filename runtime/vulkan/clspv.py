"""clspv's command line, out of the library that PyPI's pyclspv is: clspv::Compile(argc, argv)."""
import ctypes, glob, os, sys, sysconfig

found = [name for place in sys.path + [sysconfig.get_paths()["platlib"]] for name in glob.glob(place + "/pyclspv*.so")]
if not found:
    sys.exit("the Python package pyclspv is not there")
if sys.argv[1:] == ["--is-there"]:
    sys.exit(0)
library = ctypes.PyDLL(found[0])
compile = library._ZN5clspv7CompileEiPKPKc
compile.restype = ctypes.c_int
compile.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
words = [b"clspv"] + [os.fsencode(word) for word in sys.argv[1:]]
status = compile(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
sys.stdout.flush()
os._exit(1 if status else 0)  # without the ends of two runtimes in one process
